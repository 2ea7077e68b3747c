//! Owns the numbered list of migrations, which of them a store needs, and the rule for schema changes. Each store runs
//! them itself: SQLite and PostgreSQL have the same numbers and different SQL.
//!
//! The rule: servers of two releases work on one store at the same time, the older one on a schema that the newer one
//! has migrated.
//!
//! - A migration only expands: tables, columns that are nullable or have a default, indexes, triggers that keep older
//!   writers correct. It never removes or changes anything that the previous release reads or writes; that waits for
//!   the release after next, when no supported program uses it any more.
//! - Each migration has `works_since`: the oldest schema whose programs still work on a store that has it. It is stored
//!   with the migration, because the older program needs it and cannot look it up.
//! - A program of schema K opens a store of schema V > K exactly if every migration beyond K works since K or before.
//!   Otherwise it refuses, and names the version of Downbeat to start.
//! - What older programs cannot read is written only when no server of an older release is live. From then on the store
//!   refuses them: `works_since` of the migration that brought it rises.
//! - On PostgreSQL a migration creates no index of a table that has rows: `postgres/indexes.rs` builds those while
//!   servers write.
//! - Statements name their columns: `SELECT *` and `INSERT` without a list see what a later migration adds.
//! - The statements of each schema's programs are recorded in `tests/golden/statements`, and a test prepares all
//!   supported ones on the newest schema.
//!
//! This program is the first with the rule. Schema 1 was never released; its programs, and those of schema 2 without
//! the rule, refuse a store with a newer schema. Their rows in `migrations` have no `works_since` and do not need it:
//! every program with the rule has those migrations in its own list.

use crate::port::{Error, Result};

/// One step of the schema. A released step is never edited: its checksum is stored with its number.
#[derive(Debug)]
pub(crate) struct Migration {
    pub(crate) number: u32,
    /// The oldest schema whose programs still work after this migration; see the module.
    pub(crate) works_since: u32,
    pub(crate) sql: &'static str,
}

/// The program's version. It is stored with each migration, so that an older program can name the version to start.
pub(crate) const PROGRAM: &str = env!("CARGO_PKG_VERSION");

pub(crate) const SQLITE: &[Migration] = &[
    Migration { number: 1, works_since: 1, sql: include_str!("../migrations/sqlite/0001_first.sql") },
    Migration { number: 2, works_since: 1, sql: include_str!("../migrations/sqlite/0002_append_only.sql") },
    Migration { number: 3, works_since: 1, sql: include_str!("../migrations/sqlite/0003_levels.sql") },
    Migration { number: 4, works_since: 1, sql: include_str!("../migrations/sqlite/0004_fleet.sql") },
    Migration { number: 5, works_since: 1, sql: include_str!("../migrations/sqlite/0005_graph.sql") },
    Migration { number: 6, works_since: 1, sql: include_str!("../migrations/sqlite/0006_nodes.sql") },
    Migration { number: 7, works_since: 1, sql: include_str!("../migrations/sqlite/0007_final.sql") },
    Migration { number: 8, works_since: 1, sql: include_str!("../migrations/sqlite/0008_lists.sql") },
    Migration { number: 9, works_since: 1, sql: include_str!("../migrations/sqlite/0009_clusters.sql") },
    Migration { number: 10, works_since: 1, sql: include_str!("../migrations/sqlite/0010_volume.sql") },
    Migration { number: 11, works_since: 1, sql: include_str!("../migrations/sqlite/0011_jobs.sql") },
    Migration { number: 12, works_since: 1, sql: include_str!("../migrations/sqlite/0012_states.sql") },
    Migration { number: 13, works_since: 1, sql: include_str!("../migrations/sqlite/0013_life.sql") },
];

pub(crate) const POSTGRES: &[Migration] = &[
    Migration { number: 1, works_since: 1, sql: include_str!("../migrations/postgres/0001_first.sql") },
    Migration { number: 2, works_since: 1, sql: include_str!("../migrations/postgres/0002_append_only.sql") },
    Migration { number: 3, works_since: 1, sql: include_str!("../migrations/postgres/0003_levels.sql") },
    Migration { number: 4, works_since: 1, sql: include_str!("../migrations/postgres/0004_fleet.sql") },
    Migration { number: 5, works_since: 1, sql: include_str!("../migrations/postgres/0005_graph.sql") },
    Migration { number: 6, works_since: 1, sql: include_str!("../migrations/postgres/0006_nodes.sql") },
    Migration { number: 7, works_since: 1, sql: include_str!("../migrations/postgres/0007_final.sql") },
    Migration { number: 8, works_since: 1, sql: include_str!("../migrations/postgres/0008_lists.sql") },
    Migration { number: 9, works_since: 1, sql: include_str!("../migrations/postgres/0009_clusters.sql") },
    Migration { number: 10, works_since: 1, sql: include_str!("../migrations/postgres/0010_volume.sql") },
    Migration { number: 11, works_since: 1, sql: include_str!("../migrations/postgres/0011_jobs.sql") },
    Migration { number: 12, works_since: 1, sql: include_str!("../migrations/postgres/0012_states.sql") },
    Migration { number: 13, works_since: 1, sql: include_str!("../migrations/postgres/0013_life.sql") },
];

/// The schema that added contents. A store that shares contents has this number as the migration's `works_since`, so
/// that older programs, which cannot read such rows, refuse it.
pub(crate) const CONTENTS: u32 = 8;

/// A row of the store's table of migrations.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    pub(crate) number: u32,
    pub(crate) checksum: String,
    /// None if a program without the rule wrote the row.
    pub(crate) works_since: Option<u32>,
    /// The version of the program that ran it.
    pub(crate) program: Option<String>,
}

impl Migration {
    /// Returns the FNV-1a hash: it detects an edit, not an attack.
    pub(crate) fn checksum(&self) -> String {
        let hash = self.sql.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}

/// Returns the migrations to run, or an error if this program must not use the store.
pub(crate) fn missing<'a>(known: &'a [Migration], ran: &[Ran]) -> Result<Vec<&'a Migration>> {
    let newest = known.last().map_or(0, |migration| migration.number);
    let too_new = |ran: &&Ran| ran.number > newest && ran.works_since.is_none_or(|since| since > newest);
    if let Some(ran) = ran.iter().filter(too_new).max_by_key(|ran| ran.number) {
        let program =
            ran.program.as_deref().map_or_else(|| "a newer version".to_owned(), |v| format!("{v} or newer"));
        return Err(Error::NewerSchema { found: ran.number, known: newest, program });
    }
    let mut missing = Vec::new();
    for migration in known {
        match ran.iter().find(|ran| ran.number == migration.number) {
            Some(ran) if ran.checksum == migration.checksum() => {}
            Some(_) => return Err(Error::AlteredMigration { number: migration.number }),
            None => missing.push(migration),
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(known: &[Migration]) -> Vec<Ran> {
        let ran = |migration: &Migration| Ran {
            number: migration.number,
            checksum: migration.checksum(),
            works_since: Some(migration.works_since),
            program: Some(PROGRAM.to_owned()),
        };
        known.iter().map(ran).collect()
    }

    /// A migration as a future program would store it.
    fn future(number: u32, works_since: Option<u32>) -> Ran {
        Ran { number, checksum: "x".to_owned(), works_since, program: Some(format!("9.{number}.0")) }
    }

    fn newest() -> u32 {
        SQLITE.last().unwrap().number
    }

    #[test]
    fn both_dialects_have_equal_numbers_that_rise_from_1() {
        let numbers = |list: &[Migration]| -> Vec<_> {
            list.iter().map(|migration| (migration.number, migration.works_since)).collect()
        };
        assert_eq!(numbers(SQLITE), numbers(POSTGRES));
        let rising: Vec<_> = (1..=u32::try_from(SQLITE.len()).unwrap()).collect();
        assert_eq!(SQLITE.iter().map(|migration| migration.number).collect::<Vec<_>>(), rising);
    }

    #[test]
    fn a_migration_works_with_itself_and_brings_nobody_back() {
        let mut since = 1;
        for migration in SQLITE {
            assert!((since..=migration.number).contains(&migration.works_since), "{}", migration.number);
            since = migration.works_since;
        }
    }

    #[test]
    fn a_migration_that_works_with_an_older_schema_takes_nothing_away() {
        let taking = ["DROP ", "RENAME ", "DELETE ", "TRUNCATE ", " SET NOT NULL", " TYPE "];
        for migration in SQLITE.iter().chain(POSTGRES).filter(|each| each.works_since < each.number) {
            let sql: Vec<_> = migration.sql.lines().filter(|line| !line.starts_with("--")).collect();
            // Neither a trigger nor a reference takes anything away, nor does an index that another one replaces.
            let harmless = ["AFTER DELETE ON ", "ON DELETE CASCADE", "DROP INDEX "];
            let sql = sql.join(" ").to_uppercase();
            let sql = harmless.iter().fold(sql, |sql, words| sql.replace(words, ""));
            for word in taking {
                assert!(!sql.contains(word), "migration {} contains {word}", migration.number);
            }
        }
    }

    #[test]
    fn only_what_did_not_run_is_missing() {
        assert_eq!(missing(SQLITE, &[]).unwrap().len(), SQLITE.len());
        assert!(missing(SQLITE, &all_of(SQLITE)).unwrap().is_empty());
        assert_eq!(missing(SQLITE, &all_of(&SQLITE[..1])).unwrap().len(), SQLITE.len() - 1);
    }

    #[test]
    fn what_programs_without_the_rule_ran_is_known_here() {
        let mut ran = all_of(&SQLITE[..2]);
        for ran in &mut ran {
            (ran.works_since, ran.program) = (None, None);
        }
        assert_eq!(missing(SQLITE, &ran).unwrap().first().unwrap().number, 3);
    }

    #[test]
    fn a_newer_schema_is_opened_exactly_if_all_of_it_works_with_this_one() {
        let newest = newest();
        let cases: [(&[Option<u32>], Option<u32>); 7] = [
            (&[Some(newest)], None),
            (&[Some(1), Some(newest)], None),
            (&[Some(newest), Some(newest), Some(newest)], None),
            (&[Some(newest + 1)], Some(newest + 1)),
            (&[Some(newest), Some(newest + 1)], Some(newest + 2)),
            (&[Some(newest + 1), Some(newest)], Some(newest + 1)),
            (&[None], Some(newest + 1)),
        ];
        for (future_ones, refused) in cases {
            let mut ran = all_of(SQLITE);
            ran.extend((newest + 1..).zip(future_ones).map(|(number, since)| future(number, *since)));
            match (missing(SQLITE, &ran), refused) {
                (Ok(missing), None) => assert!(missing.is_empty(), "{future_ones:?}"),
                (Err(Error::NewerSchema { found, known, program }), Some(refused)) => {
                    assert_eq!((found, known), (refused, newest), "{future_ones:?}");
                    assert_eq!(program, format!("9.{refused}.0 or newer"));
                }
                (answer, _) => panic!("{future_ones:?}: {answer:?}"),
            }
        }
    }

    #[test]
    fn a_store_that_shares_contents_is_refused_by_programs_that_cannot_read_them() {
        let (known, mut ran) = (&SQLITE[..7], all_of(SQLITE));
        assert!(missing(known, &ran).unwrap().is_empty());
        ran[7].works_since = Some(CONTENTS);
        assert!(matches!(missing(known, &ran), Err(Error::NewerSchema { found: 8, known: 7, .. })));
        assert!(missing(&SQLITE[..8], &ran).unwrap().is_empty());
    }

    #[test]
    fn an_altered_migration_is_refused() {
        let ran = [Ran { number: 1, ..future(1, Some(1)) }];
        assert!(matches!(missing(SQLITE, &ran), Err(Error::AlteredMigration { number: 1 })));
    }
}
