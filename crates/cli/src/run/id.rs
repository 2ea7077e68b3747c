//! Resolves the RUN argument: an id, a unique start of an id, or `last`.

use downbeat_api::{List, RunRow, request};
use downbeat_client::{Client, Start};
use downbeat_core::ids::RunId;
use downbeat_core::limits;
use downbeat_core::nearest::nearest_within;

use super::Which;
use crate::exit::{Failure, Result};

/// How many pages of runs are searched for an id.
const MOST_PAGES: u32 = 10;
/// A whole UUID; scheduled runs have a colon in their id.
const WHOLE_ID_CHARS: usize = 36;
/// How many matching runs an error lists.
const MOST_NAMED: usize = 5;

impl Which {
    pub(super) async fn resolve(&self, client: &Client) -> Result<RunId> {
        let text = self.run.as_str();
        if text.trim().is_empty() {
            return Err(Failure::bad_input("RUN is empty; write an id, the start of an id, or `last`"));
        }
        if text.chars().count() >= WHOLE_ID_CHARS || text.contains(':') {
            return Ok(text.into());
        }
        if text == "last" {
            // An id is unique, but the last run is that of one cluster.
            let runs = request::runs().with("cluster", client.cluster().unwrap_or("default"));
            let run = client.page(runs, 1, &Start::default()).await?.data.into_iter().next();
            return run.map(|run| run.summary.id).ok_or_else(|| Failure::not_found("there is no run yet"));
        }
        let mut found = Vec::new();
        let mut similar = None;
        let mut start = Start::default();
        for _ in 0..MOST_PAGES {
            let runs = page(client, limits::PAGE_MOST, &start).await?;
            let next = start.next(&runs);
            similar =
                similar.or_else(|| find_similar(text, runs.data.iter().map(|run| run.summary.id.as_str())));
            found.extend(
                runs.data.into_iter().map(|run| run.summary.id).filter(|id| id.as_str().starts_with(text)),
            );
            match next {
                Some(next) => start = next,
                None => break,
            }
        }
        only(text, found, similar.as_deref())
    }
}

async fn page(client: &Client, limit: u32, start: &Start) -> Result<List<RunRow>> {
    let runs = request::runs().with_any("cluster", client.cluster());
    Ok(client.page(runs, limit, start).await?)
}

/// Returns the id whose start differs by one typing error, if only one does: ids of runs are similar.
fn find_similar<'i>(text: &str, ids: impl Iterator<Item = &'i str>) -> Option<String> {
    const SHORTEST: usize = 6;
    let length = text.chars().count();
    let prefix = |id: &'i str| id.char_indices().nth(length).map_or(id, |(end, _)| &id[..end]);
    let mut close = ids.filter(|id| nearest_within(text, [prefix(id)], 1).is_some());
    let first = close.next().filter(|_| length >= SHORTEST)?;
    close.next().is_none().then(|| first.to_owned())
}

fn only(text: &str, mut found: Vec<RunId>, similar: Option<&str>) -> Result<RunId> {
    match found.len() {
        0 => {
            let advice = match similar {
                Some(similar) => format!("did you mean {similar}?"),
                None => "`downbeat run list` shows the runs".to_owned(),
            };
            Err(Failure::not_found(format!("no run has an id that is or starts with `{text}`; {advice}")))
        }
        1 => Ok(found.remove(0)),
        count => {
            let named = found.iter().take(MOST_NAMED).map(RunId::to_string).collect();
            Err(Failure::bad_input(format!("`{text}` matches {count} runs; write more of the id"))
                .with_details(named))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;

    #[test]
    fn a_typing_error_in_an_id_finds_the_run_that_was_meant() {
        let ids = ["01a2b3c4-0000", "01a2ffff-0000"];
        let similar = |text: &str| find_similar(text, ids.into_iter());
        assert_eq!(similar("01a2b3c5").as_deref(), Some("01a2b3c4-0000"));
        assert_eq!(similar("01a2bc34").as_deref(), Some("01a2b3c4-0000"));
        assert_eq!(similar("01b2").as_deref(), None, "too short to tell");
        assert_eq!(similar("ffffffff").as_deref(), None);
        let failure = only("01a2b3c5", Vec::new(), similar("01a2b3c5").as_deref()).unwrap_err();
        assert!(failure.message.ends_with("did you mean 01a2b3c4-0000?"), "{}", failure.message);
    }

    #[test]
    fn a_beginning_must_be_unique() {
        let ids = |texts: &[&str]| texts.iter().map(|text| RunId::from(*text)).collect::<Vec<_>>();
        assert_eq!(only("ab", ids(&["abc"]), None).unwrap().as_str(), "abc");
        assert_eq!(only("ab", ids(&[]), None).unwrap_err().code, Code::NotFound);
        let several = only("ab", ids(&["abc", "abd"]), None).unwrap_err();
        assert_eq!(
            (several.code, several.details),
            (Code::BadInput, vec!["abc".to_owned(), "abd".to_owned()])
        );
    }
}
