//! Owns the numbered list of migrations and what is to be done with a store that has some of them. Running them is
//! each store's own: SQLite and PostgreSQL have equal numbers and different text.

use crate::port::Error;

/// One step of the schema. Once released it is never edited: its checksum is stored with its number.
#[derive(Debug)]
pub(crate) struct Migration {
    pub(crate) number: u32,
    pub(crate) sql: &'static str,
}

pub(crate) const SQLITE: &[Migration] = &[
    Migration { number: 1, sql: include_str!("../migrations/sqlite/0001_first.sql") },
    Migration { number: 2, sql: include_str!("../migrations/sqlite/0002_append_only.sql") },
];

pub(crate) const POSTGRES: &[Migration] = &[
    Migration { number: 1, sql: include_str!("../migrations/postgres/0001_first.sql") },
    Migration { number: 2, sql: include_str!("../migrations/postgres/0002_append_only.sql") },
];

impl Migration {
    /// FNV-1a: it shall notice an edit, not withstand an attack.
    pub(crate) fn checksum(&self) -> String {
        let hash = self.sql.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}

/// What is still to be run, given the numbers and checksums of what was.
pub(crate) fn missing<'a>(
    known: &'a [Migration],
    ran: &[(u32, String)],
) -> Result<Vec<&'a Migration>, Error> {
    let newest = known.last().map_or(0, |migration| migration.number);
    if let Some(&(found, _)) = ran.iter().max_by_key(|(number, _)| number)
        && found > newest
    {
        return Err(Error::NewerSchema { found, known: newest });
    }
    let mut missing = Vec::new();
    for migration in known {
        match ran.iter().find(|(number, _)| *number == migration.number) {
            Some((_, checksum)) if *checksum == migration.checksum() => {}
            Some(_) => return Err(Error::AlteredMigration { number: migration.number }),
            None => missing.push(migration),
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_dialects_have_equal_numbers_that_rise_from_1() {
        let numbers = |list: &[Migration]| list.iter().map(|migration| migration.number).collect::<Vec<_>>();
        assert_eq!(numbers(SQLITE), numbers(POSTGRES));
        assert_eq!(numbers(SQLITE), (1..=u32::try_from(SQLITE.len()).unwrap()).collect::<Vec<_>>());
    }

    #[test]
    fn only_what_did_not_run_is_missing() {
        assert_eq!(missing(SQLITE, &[]).unwrap().len(), SQLITE.len());
        let ran: Vec<_> = SQLITE.iter().map(|migration| (migration.number, migration.checksum())).collect();
        assert!(missing(SQLITE, &ran).unwrap().is_empty());
    }

    #[test]
    fn a_newer_schema_and_an_altered_migration_are_refused() {
        let newer = [(1, SQLITE[0].checksum()), (99, "x".to_owned())];
        assert!(matches!(missing(SQLITE, &newer), Err(Error::NewerSchema { found: 99, .. })));
        assert!(matches!(
            missing(SQLITE, &[(1, "x".to_owned())]),
            Err(Error::AlteredMigration { number: 1 })
        ));
    }
}
