//! The suite must be able to fail: each deliberate mistake in the ordering code is caught within a bounded number of
//! seeded runs.

use afterimage_order::redo::Mutation;

use crate::run::Run;

#[test]
fn every_mutation_is_caught() {
    let steps = 250;
    let mut missed = Vec::new();
    for mutation in Mutation::ALL {
        let caught = (1..=400).find_map(|seed| {
            let result = Run::new(seed, Some(mutation)).and_then(|mut run| run.steps(steps));
            result.err().map(|e| (seed, e))
        });
        match caught {
            Some((seed, how)) => eprintln!("{mutation:?}: seed {seed}: {how}"),
            None => missed.push(mutation),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
