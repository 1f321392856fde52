//! The audit of random plans against one that counts every element by itself.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};
use weight_checker::ops::audit;

/// One parameter on one rank, with (source, ...) or constant pieces in JSON.
#[derive(Clone, Debug)]
struct Case {
    sources: Vec<Vec<u64>>,
    parameter: Vec<u64>,
    pieces: Vec<Value>,
}

impl Case {
    fn document(&self) -> Value {
        let tensor = |shape: &Vec<u64>| json!({"dtype": "float32", "shape": shape});
        let sources = self.sources.iter().enumerate().map(|(index, shape)| (format!("s{index}"), tensor(shape)));
        json!({
            "format": "weight-checker-plan", "version": 1,
            "sources": sources.collect::<serde_json::Map<_, _>>(),
            "ranks": [{
                "rank": {"dp": 0, "pp": 0, "pcp": 0, "tp": 0},
                "parameters": {"p": {"dtype": "float32", "shape": self.parameter, "pieces": self.pieces}},
            }],
        })
    }
}

fn row_major(shape: &[u64]) -> Vec<u64> {
    (0..shape.len()).map(|dim| shape[dim + 1..].iter().product()).collect()
}

fn coordinates(element: u64, shape: &[u64]) -> Vec<u64> {
    row_major(shape).iter().zip(shape).map(|(stride, extent)| element / stride % extent).collect()
}

fn numbers(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|number| number.as_i64().unwrap()).collect()
}

/// (element of the parameter, element of the source) of everything that a piece copies; 0 for a constant.
fn elements(piece: &Value) -> Vec<(i64, i64)> {
    let (shape, strides) = (numbers(&piece["shape"]), numbers(&piece["strides"]));
    let from = piece.get("source_strides").map_or(vec![0; shape.len()], numbers);
    let mut all = vec![(piece["offset"].as_i64().unwrap(), piece["source_offset"].as_i64().unwrap_or(0))];
    for dim in 0..shape.len() {
        let steps = |(to, source): (i64, i64)| {
            let (stride, from) = (strides[dim], from[dim]);
            (0..shape[dim]).map(move |index| (to + index * stride, source + index * from))
        };
        all = all.into_iter().flat_map(steps).collect();
    }
    all
}

/// What the lists of the report must be.
fn counted(case: &Case) -> Value {
    let size: u64 = case.parameter.iter().product();
    let pieces: Vec<Vec<(i64, i64)>> = case.pieces.iter().map(elements).collect();
    let source = |piece: usize| case.pieces[piece]["source"].as_str();
    let mut writers: BTreeMap<i64, BTreeSet<(&str, i64)>> = BTreeMap::new();
    let mut taken: BTreeMap<&str, BTreeSet<i64>> = BTreeMap::new();
    let mut past: BTreeMap<Option<&str>, i64> = BTreeMap::new();
    for (piece, moves) in pieces.iter().enumerate() {
        let mut note = |name, element: i64, of: u64| {
            if element < 0 || element >= of as i64 {
                let first = past.entry(name).or_insert(element);
                *first = element.min(*first);
            }
        };
        moves.iter().for_each(|(to, _)| note(None, *to, size));
        let later = (piece + 1..pieces.len()).filter(|later| source(*later).is_none());
        let hidden: BTreeSet<i64> = later.flat_map(|later| pieces[later].iter().map(|(to, _)| *to)).collect();
        // A piece that begins before its source is wrong as a whole: it takes nothing.
        let is_wrong = moves.iter().any(|(_, from)| *from < 0);
        for (to, from) in moves {
            let writers = writers.entry(*to).or_default();
            let Some(name) = source(piece) else { continue };
            writers.insert((name, *from));
            let of = case.sources[name[1..].parse::<usize>().unwrap()].iter().product();
            note(Some(name), *from, of);
            if !is_wrong && !hidden.contains(to) {
                taken.entry(name).or_default().insert(*from);
            }
        }
    }
    let unwritten: Vec<u64> = (0..size).filter(|element| !writers.contains_key(&(*element as i64))).collect();
    let shared: Vec<u64> =
        (0..size).filter(|element| writers.get(&(*element as i64)).is_some_and(|from| from.len() > 1)).collect();
    let finding = |elements: &[u64], shape: &[u64]| {
        elements.first().map(|first| json!([elements.len(), coordinates(*first, shape)]))
    };
    let (mut unplaced, mut partly) = (Vec::new(), Vec::new());
    for (index, shape) in case.sources.iter().enumerate() {
        let (name, size): (_, u64) = (format!("s{index}"), shape.iter().product());
        let none = BTreeSet::new();
        let taken = taken.get(name.as_str()).unwrap_or(&none);
        let missing: Vec<u64> = (0..size).filter(|element| !taken.contains(&(*element as i64))).collect();
        if missing.len() as u64 == size && size > 0 {
            unplaced.push(json!(name));
        } else if let Some(found) = finding(&missing, shape) {
            partly.push(json!([name, found]));
        }
    }
    let past: Vec<Value> = past.into_iter().map(|(name, first)| json!([name, first])).collect();
    json!({
        "unwritten": finding(&unwritten, &case.parameter),
        "overlapping": finding(&shared, &case.parameter),
        "unplaced": unplaced, "partly_placed": partly, "past_the_end": past,
    })
}

/// The same of the library's report.
fn reported(report: &Value) -> Value {
    let list = |name: &str| report[name].as_array().unwrap().clone();
    let one = |name: &str| list(name).first().map(|found| json!([found["elements"], found["first"]]));
    let partly = list("partly_placed");
    let partly = partly.iter().map(|found| json!([found["source"], [found["elements"], found["first"]]]));
    json!({
        "unwritten": one("unwritten"),
        "overlapping": one("overlapping"),
        "unplaced": list("unplaced").iter().map(|found| found["source"].clone()).collect::<Vec<_>>(),
        "partly_placed": partly.collect::<Vec<_>>(),
        "past_the_end": list("past_the_end").iter()
            .map(|found| json!([found["source"], found["first_beyond"]])).collect::<Vec<_>>(),
    })
}

fn shape() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![9 => 1..7u64, 1 => Just(0)], 0..4)
}

/// A box of the parameter with any strides that write nothing twice, reading any affine part of a source.
fn any_piece(sources: usize) -> impl Strategy<Value = Value> {
    let dims = prop::collection::vec((0..5u64, 0..4u64, -5..7i64), 0..4);
    (dims, 0..30u64, 0..30u64, 0..sources, any::<bool>(), 0..5u8).prop_map(
        |(dims, offset, from, source, turned, kind)| {
            let mut reach = 0;
            let mut dims: Vec<(u64, u64, i64)> = dims
                .into_iter()
                .map(|(extent, gap, from)| {
                    let stride = reach + 1 + gap;
                    reach += extent.saturating_sub(1) * stride;
                    (extent, stride, from)
                })
                .collect();
            if turned {
                dims.reverse();
            }
            let column = |of: fn(&(u64, u64, i64)) -> i64| -> Vec<i64> { dims.iter().map(of).collect() };
            let mut piece = json!({
                "shape": column(|dim| dim.0 as i64), "offset": offset, "strides": column(|dim| dim.1 as i64),
            });
            if kind < 2 {
                piece["constant"] = json!(0);
            } else {
                piece["source"] = json!(format!("s{source}"));
                piece["source_offset"] = json!(from);
                piece["source_strides"] = json!(column(|dim| dim.2));
            }
            piece
        },
    )
}

/// What loaders do: a slice of a source, or a constant, perhaps with its dimensions in another order, put into a slice of the parameter.
fn slice_piece(parameter: Vec<u64>, source: Vec<u64>, name: String) -> impl Strategy<Value = Value> {
    let cut = (any::<u64>(), any::<u64>(), any::<u64>());
    (prop::collection::vec(cut, parameter.len()), any::<bool>(), 0..3u8).prop_map(move |(cuts, swapped, kind)| {
        let (to, mut from) = (row_major(&parameter), row_major(&source));
        let mut limits = source.clone();
        if swapped {
            from.reverse();
            limits.reverse();
        }
        let (mut shape, mut offset, mut start) = (Vec::new(), 0, 0);
        for (dim, (extent, at, begin)) in cuts.into_iter().enumerate() {
            let extent = 1 + extent % parameter[dim].min(limits[dim]);
            offset += at % (parameter[dim] - extent + 1) * to[dim];
            start += begin % (limits[dim] - extent + 1) * from[dim];
            shape.push(extent);
        }
        if kind == 0 {
            return json!({"constant": 0, "shape": shape, "offset": offset, "strides": to});
        }
        json!({
            "source": name, "shape": shape, "source_offset": start, "source_strides": from, "offset": offset,
            "strides": to,
        })
    })
}

fn any_case() -> impl Strategy<Value = Case> {
    (prop::collection::vec(shape(), 1..3), shape())
        .prop_flat_map(|(sources, parameter)| {
            let pieces = prop::collection::vec(any_piece(sources.len()), 0..8);
            (Just(sources), Just(parameter), pieces)
        })
        .prop_map(|(sources, parameter, pieces)| Case { sources, parameter, pieces })
}

fn slices_case() -> impl Strategy<Value = Case> {
    (1..4usize)
        .prop_flat_map(|ndim| {
            let shape = || prop::collection::vec(1..7u64, ndim);
            (shape(), shape(), shape())
        })
        .prop_flat_map(|(parameter, first, second)| {
            let slice = |shape: &Vec<u64>, name: &str| slice_piece(parameter.clone(), shape.clone(), name.to_owned());
            let piece = prop_oneof![slice(&first, "s0"), slice(&second, "s1")];
            (Just(parameter), Just(vec![first, second]), prop::collection::vec(piece, 1..7))
        })
        .prop_map(|(parameter, sources, pieces)| Case { sources, parameter, pieces })
}

fn agrees(case: &Case) -> Result<(), TestCaseError> {
    let report = audit(&case.document().to_string()).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let (ours, counted) = (reported(&report.to_json()), counted(case));
    prop_assert_eq!(&report.unaudited, &[]);
    prop_assert_eq!(
        report.is_complete(),
        counted
            .as_object()
            .unwrap()
            .values()
            .all(|list| { list.is_null() || list.as_array().is_some_and(Vec::is_empty) })
    );
    prop_assert_eq!(ours, counted);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn any_boxes(case in any_case()) {
        agrees(&case)?;
    }

    #[test]
    fn slices(case in slices_case()) {
        agrees(&case)?;
    }
}
