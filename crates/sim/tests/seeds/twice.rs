//! The same seed produces the same trace, regardless of earlier seeds.

use downbeat_sim::{Setup, run};

#[test]
fn a_seed_has_one_trace() {
    let seeds: Vec<u64> = (0..20).collect();
    let first: Vec<_> = seeds.iter().map(|seed| run(Setup::new(*seed)).trace).collect();
    for seed in seeds.iter().rev() {
        let again = run(Setup::new(*seed)).trace;
        let before = &first[usize::try_from(*seed).unwrap()];
        let differs = before.iter().zip(&again).position(|(one, other)| one != other);
        if let Some(at) = differs {
            panic!("seed {seed} differs in line {at}:\n  {}\n  {}", before[at], again[at]);
        }
        assert_eq!(before.len(), again.len(), "seed {seed}");
    }
}
