//! Decides how long a failed instance waits before its next attempt, and a failed run before its next round.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};

use super::record::RunRecord;
use super::words::RunState;
use crate::dice::Dice;
use crate::ids::RunId;
use crate::spec::Retry;

/// Returns the pause before the `n`th retry (from 1): a random part of `delay * factor^(n-1)`, capped (full jitter).
pub fn pause(retry: &Retry, n: u32, dice: &mut Dice) -> Duration {
    dice.up_to(ceiling(retry, n))
}

/// Returns when the round after `round` begins, if the run entered `retrying` at this time. The dice follow from the run and
/// the round: so a server that takes the run over computes the same time, and nothing has to be stored.
pub fn next_round_at(retry: &Retry, run: &RunId, round: u32, retrying_since: Timestamp) -> Timestamp {
    let digest = Sha256::new_with_prefix(run.as_str()).chain_update(round.to_be_bytes()).finalize();
    let seed = digest.iter().take(8).fold(0, |seed: u64, byte| (seed << 8) | u64::from(*byte));
    let pause = SignedDuration::try_from(pause(retry, round, &mut Dice::new(seed)));
    retrying_since.saturating_add(pause.unwrap_or(SignedDuration::MAX)).unwrap_or(Timestamp::MAX)
}

/// Returns when the next round of a run begins, if the run waits for it.
pub fn waits_until(run: &RunRecord) -> Option<Timestamp> {
    if run.state() != RunState::Retrying {
        return None;
    }
    let since = run.live.states.last_entered(RunState::Retrying)?;
    Some(next_round_at(run.definition.retry.as_ref()?, &run.id, run.live.round, since))
}

/// Returns the longest possible `n`th pause.
pub fn ceiling(retry: &Retry, n: u32) -> Duration {
    let most = retry.max_delay.0;
    let exponent = i32::try_from(n.saturating_sub(1)).unwrap_or(i32::MAX);
    let seconds = retry.delay.0.as_secs_f64() * retry.factor.powi(exponent);
    // Absurd factors result in NaN or infinity: both mean the cap.
    if seconds.is_finite() && seconds < most.as_secs_f64() {
        Duration::from_secs_f64(seconds.max(0.0))
    } else {
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap() {
        let retry = Retry::times(10);
        let seconds: Vec<u64> = (1..=8).map(|n| ceiling(&retry, n).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn jitter_spreads_over_the_whole_pause() {
        let retry = Retry::times(3);
        let mut dice = Dice::new(1);
        let pauses: Vec<Duration> = (0..1_000).map(|_| pause(&retry, 3, &mut dice)).collect();
        assert!(pauses.iter().all(|p| *p <= Duration::from_secs(4)));
        assert!(pauses.iter().any(|p| *p < Duration::from_millis(400)));
        assert!(pauses.iter().any(|p| *p > Duration::from_millis(3_600)));
    }

    #[test]
    fn every_server_computes_the_same_time_for_the_next_round() {
        let (retry, since) = (Retry::times(10), Timestamp::UNIX_EPOCH);
        let at = |run: &str, round| next_round_at(&retry, &RunId::from(run), round, since);
        assert_eq!(at("run-1", 1), at("run-1", 1));
        let times: Vec<Timestamp> = ["run-1", "run-2", "run-3"].map(|run| at(run, 3)).into();
        assert!(times.windows(2).all(|pair| pair[0] != pair[1]), "{times:?}");
        for round in 1..=11 {
            let pause = Duration::try_from(at("run-1", round).duration_since(since)).unwrap();
            assert!(pause <= ceiling(&retry, round), "{round}: {pause:?}");
        }
    }

    #[test]
    fn absurd_numbers_mean_the_cap() {
        let mut retry = Retry::times(3);
        retry.factor = 1e300;
        assert_eq!(ceiling(&retry, u32::MAX), retry.max_delay.0);
    }
}
