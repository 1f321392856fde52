//! The audit of plans that are made to take forever: it answers, and never calls a plan complete that is not.

use proptest::prelude::*;
use serde_json::{Value, json};
use weight_checker::ops::audit;
use weight_checker::plan::audit::{AuditReport, Unaudited};

/// One parameter and one source of `elements`.
fn plan(elements: u64, pieces: Value) -> Value {
    let tensor = json!({"dtype": "uint8", "shape": [elements]});
    json!({
        "format": "weight-checker-plan", "version": 1, "sources": {"s": tensor},
        "ranks": [{
            "rank": {"dp": 0, "pp": 0, "pcp": 0, "tp": 0},
            "parameters": {"p": {"dtype": "uint8", "shape": [elements], "pieces": pieces}},
        }],
    })
}

fn report(elements: u64, pieces: Value) -> AuditReport {
    audit(&plan(elements, pieces).to_string()).unwrap()
}

/// A piece that takes elements from where it puts them.
fn copy(shape: &[u64], offset: u64, strides: &[u64]) -> Value {
    json!({
        "source": "s", "shape": shape, "source_offset": offset, "source_strides": strides, "offset": offset,
        "strides": strides,
    })
}

fn nothing_is_said_of_both() -> Vec<Unaudited> {
    vec![Unaudited::Parameter("dp0:pp0:pcp0:tp0:p".to_owned()), Unaudited::Source("s".to_owned())]
}

#[test]
fn numbers_as_large_as_they_get() {
    let most = (1 << 60) - 1;
    assert!(report(most, json!([copy(&[most], 0, &[1])])).is_complete());
    let holes = report(most, json!([copy(&[1 << 28, 1 << 28], 0, &[1 << 30, 2])]));
    assert_eq!(holes.unwritten[0].elements, most - (1 << 56));
    assert_eq!(holes.partly_placed[0].elements, most - (1 << 56));
    assert_eq!(holes.unwritten[0].first, [1]);
}

#[test]
fn as_many_dimensions_as_there_may_be() {
    let strides: Vec<u64> = (0..29).map(|dim| 1 << (2 * dim)).collect();
    let report = report(1 << 59, json!([copy(&[2; 29], 0, &strides), copy(&[2; 29], 2, &strides)]));
    assert_eq!((report.unwritten[0].elements, report.unwritten[0].of), ((1 << 59) - (1 << 30), 1 << 59));
    assert_eq!(report.unwritten[0].first, [8]);
    assert_eq!((&report.overlapping[..], &report.unaudited[..]), (&[][..], &[][..]));
}

#[test]
fn strides_without_a_common_measure() {
    let few = report(1 << 12, json!([copy(&[1 << 11], 0, &[2]), copy(&[1 << 10], 1, &[3])]));
    assert_eq!(few.unwritten[0].elements, 2048 - 512);
    let many = report(1 << 42, json!([copy(&[1 << 41], 0, &[2]), copy(&[1 << 40], 1, &[3])]));
    assert_eq!((many.unaudited.clone(), many.is_complete()), (nothing_is_said_of_both(), false));
}

#[test]
fn many_pieces_over_one_another() {
    let pieces: Vec<Value> = (0..20_000).map(|index| copy(&[50_000 - 2 * index], index, &[1])).collect();
    let report = report(60_000, json!(pieces));
    assert_eq!((report.unaudited.clone(), report.is_complete()), (nothing_is_said_of_both(), false));
}

#[test]
fn many_pieces_and_many_constants_that_hide_none_of_them() {
    let count = 40_000;
    // Below everything, and between each two pieces.
    let below = json!({"constant": 0, "shape": [16 * count], "offset": 0, "strides": [1]});
    let pieces = (0..count).flat_map(|index| {
        let from = copy(&[8], 16 * index, &[1]);
        [from, json!({"constant": 0, "shape": [8], "offset": 16 * index + 8, "strides": [1]})]
    });
    let report = report(16 * count, [below].into_iter().chain(pieces).collect());
    assert_eq!((&report.unaudited[..], &report.unwritten[..]), (&[][..], &[][..]));
    assert_eq!(report.partly_placed[0].elements, 8 * count);
}

#[test]
fn constants_over_many_pieces() {
    let pieces = (0..4_000u64).flat_map(|index| {
        [copy(&[1], index, &[1]), json!({"constant": 0, "shape": [3000], "offset": 1, "strides": [2]})]
    });
    let report = report(6_000, json!(pieces.collect::<Vec<_>>()));
    assert!(!report.is_complete());
}

#[test]
fn pieces_that_agree_in_scattered_elements() {
    // The same source in two orders: how many elements coincide has to be counted out.
    let turned = |strides: [u64; 3]| {
        json!({"source": "s", "shape": [3000, 3000, 3000], "source_offset": 0, "source_strides": strides, "offset": 0,
               "strides": [9_000_000, 3000, 1]})
    };
    let two = [turned([9_000_000, 3000, 1]), turned([9_000_000, 1, 3000])];
    let report_of_two = report(27_000_000_000, json!(two));
    // Off the diagonals.
    assert_eq!(report_of_two.overlapping[0].elements, 27_000_000_000 - 9_000_000);
    let report = report(27_000_000_000, json!([turned([9_000_000, 3000, 1]), turned([1, 2900, 8_000_001])]));
    assert!(!report.is_complete());
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 0..5i64,
        1 => -4..0i64,
        2 => (0..63u32).prop_map(|bit| 1i64 << bit),
        1 => (1..63u32).prop_map(|bit| (1i64 << bit) - 1),
        1 => Just(i64::MAX),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn any_numbers(
        elements in number(),
        pieces in prop::collection::vec(
            (prop::collection::vec((number(), number(), number()), 0..4), number(), number()), 0..4,
        ),
    ) {
        let pieces = pieces.into_iter().map(|(dims, from, offset)| {
            let column = |of: fn(&(i64, i64, i64)) -> i64| dims.iter().map(of).collect::<Vec<_>>();
            json!({
                "source": "s", "source_offset": from, "offset": offset,
                "shape": column(|dim| dim.0), "source_strides": column(|dim| dim.1), "strides": column(|dim| dim.2),
            })
        });
        let text = plan(elements.unsigned_abs(), pieces.collect()).to_string();
        if let Ok(report) = audit(&text) {
            prop_assert!(report.unwritten.iter().all(|found| 0 < found.elements && found.elements <= found.of));
            prop_assert!(report.partly_placed.iter().all(|found| 0 < found.elements && found.elements < found.of));
        }
    }
}
