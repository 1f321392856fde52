//! expect on random plans, beside an executor that moves one element after the other.

#[path = "common/checkpoints.rs"]
mod checkpoints;
mod common;

use checkpoints::{folder, plan, safetensors};
use common::{FLOAT32, Tensor, expect, hex, sha256};
use proptest::prelude::*;
use serde_json::{Value, json};
use weight_checker::status::Status;

const KEY: &str = "dp0:pp0:pcp0:tp0:p";

/// Sources of the tests: so many elements of float32, all different.
const COUNTS: [u64; 3] = [1, 37, 5000];

/// What stays inside of its tensors: extents with source and target strides, and where both start.
#[derive(Clone, Debug)]
struct Piece {
    source: usize,
    start: u64,
    offset: u64,
    dims: Vec<(u64, i64, u64)>,
}

impl Piece {
    fn json(&self) -> Value {
        let dims = |of: fn(&(u64, i64, u64)) -> i64| self.dims.iter().map(of).collect::<Vec<_>>();
        json!({
            "source": self.source.to_string(), "source_offset": self.start, "source_strides": dims(|dim| dim.1),
            "offset": self.offset, "strides": dims(|dim| dim.2 as i64), "shape": dims(|dim| dim.0 as i64),
        })
    }

    /// Element by element.
    fn execute(&self, source: &[[u8; 4]], parameter: &mut [[u8; 4]]) {
        let mut elements = vec![(self.start as i64, self.offset)];
        for (extent, down, right) in &self.dims {
            let step = |(from, to): (i64, u64)| (0..*extent).map(move |n| (from + n as i64 * down, to + n * right));
            elements = elements.into_iter().flat_map(step).collect();
        }
        elements.into_iter().for_each(|(from, to)| parameter[to as usize] = source[from as usize]);
    }
}

fn elements(source: usize) -> Vec<[u8; 4]> {
    (0..COUNTS[source]).map(|index| (index as u32 * 7 + source as u32).to_le_bytes()).collect()
}

/// A piece of a parameter of `rows` by `columns`, its dimensions in any order, some of them split and some strided.
fn piece(rows: u64, columns: u64) -> impl Strategy<Value = Piece> {
    let cut = |extent: u64| (0..extent).prop_flat_map(move |first| (Just(first), first + 1..=extent, 1u64..4));
    (0..COUNTS.len(), cut(rows), cut(columns), any::<[prop::sample::Index; 3]>(), any::<bool>()).prop_map(
        move |(source, (top, bottom, down), (left, right, across), dice, is_swapped)| {
            let (height, width) = ((bottom - top).div_ceil(down), (right - left).div_ceil(across));
            // Strides up and down, as large as the source allows; often those of a compact or transposed one.
            let room = COUNTS[source] - 1;
            let most = |extent: u64, room: u64| if extent > 1 { room / (extent - 1) } else { 40 };
            let pick = |index: &prop::sample::Index, most: u64| {
                let likely = [0, 1, 1, 2, width, height, most];
                likely[index.index(likely.len())].min(most) as i64
            };
            let inner = pick(&dice[0], most(width, room));
            let used = (width - 1) * inner as u64;
            let outer = pick(&dice[1], most(height, room - used));
            let used = used + (height - 1) * outer as u64;
            let sign = |dice: &prop::sample::Index, bit: usize| if dice.index(64) >> bit & 1 == 1 { -1 } else { 1 };
            let (outer_sign, inner_sign) = (sign(&dice[2], 0), sign(&dice[2], 1));
            let below = |extent: u64, stride: i64, sign: i64| if sign < 0 { (extent - 1) * stride as u64 } else { 0 };
            let lowest = below(height, outer, outer_sign) + below(width, inner, inner_sign);
            let start = lowest + dice[2].index((room - used) as usize + 1) as u64;
            let mut dims =
                vec![(height, outer * outer_sign, down * columns), (1, 12345, 3), (width, inner * inner_sign, across)];
            if is_swapped {
                dims.reverse();
            }
            Piece { source, start, offset: top * columns + left, dims }
        },
    )
}

fn parameter() -> impl Strategy<Value = (u64, u64, Vec<Piece>)> {
    let size = prop_oneof![(1u64..6, 1u64..6), (1u64..4, 2000u64..3000), (40u64..90, 50u64..90)];
    size.prop_flat_map(|(rows, columns)| (Just(rows), Just(columns), prop::collection::vec(piece(rows, columns), 0..5)))
}

/// Sources with `gap` elements between each two of them, and their descriptions.
fn spread(gap: usize) -> (Vec<Vec<[u8; 4]>>, Vec<Tensor>) {
    let memory: Vec<Vec<[u8; 4]>> = (0..COUNTS.len())
        .map(|source| elements(source).into_iter().flat_map(|element| vec![element; gap + 1]).collect())
        .collect();
    let tensors = memory.iter().enumerate().map(|(source, memory)| {
        let tensor = Tensor::new(&source.to_string(), memory.as_ptr().cast(), FLOAT32, &[COUNTS[source] as i64]);
        tensor.strided(&[gap as i64 + 1])
    });
    let tensors = tensors.collect();
    (memory, tensors)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn random_pieces_are_where_an_element_by_element_copy_puts_them((rows, columns, pieces) in parameter()) {
        let background = json!({
            "constant": 1.5, "shape": [rows, columns], "offset": 0, "strides": [columns, 1],
        });
        let mut expected = vec![1.5f32.to_le_bytes(); (rows * columns) as usize];
        pieces.iter().for_each(|piece| piece.execute(&elements(piece.source), &mut expected));
        let all: Vec<Value> = [background].into_iter().chain(pieces.iter().map(Piece::json)).collect();
        let sources = COUNTS.iter().enumerate();
        let sources: serde_json::Map<String, Value> = sources
            .map(|(source, count)| (source.to_string(), json!({ "dtype": "float32", "shape": [count] })))
            .collect();
        let parameter = json!({ "p": { "dtype": "float32", "shape": [rows, columns], "pieces": all } });
        let plan = plan(Value::Object(sources), parameter).to_string();
        let bytes = expected.concat();
        let tree = { let tensor = Tensor::bytes("p", &bytes); tree_of(&tensor) };
        for gap in [0, 2] {
            let (_memory, tensors) = spread(gap);
            let found = expect(&plan, None, &tensors, 0).unwrap();
            prop_assert_eq!(&found[KEY], &json!(hex(&sha256(&bytes))));
            prop_assert_eq!(&expect(&plan, None, &tensors, 1).unwrap()[KEY], &tree);
        }
    }
}

/// The tree of a tensor in memory: `tests/tree.rs` compares that with the RFC.
fn tree_of(tensor: &Tensor) -> Value {
    let options = weight_checker::ffi::types::WcOptions { algorithm: 1, ..common::options(0) };
    let rank = weight_checker::ffi::types::WcRank { dp: 0, pp: 0, pcp: 0, tp: 0 };
    // SAFETY: the tensor is the caller's and lives through the call.
    let call = |out| unsafe { weight_checker::ffi::wc_checksum(&tensor.raw, 1, &rank, &options, out) };
    common::json_of(call).unwrap()[KEY].clone()
}

#[test]
fn lengths_around_leaves_and_blocks_of_every_source() {
    let memory: Vec<u8> = (0..40_000u32).map(|index| (index % 251) as u8).collect();
    let folder = folder("lengths");
    for length in [0u64, 1, 55, 56, 63, 64, 65, 8191, 8192, 8193, 16_384, 20_000] {
        // Every second byte, so that nothing is hashed in place; and the same bytes in place.
        let every_second: Vec<u8> = memory.iter().step_by(2).take(length as usize).copied().collect();
        let sources = json!({ "w": { "dtype": "uint8", "shape": [memory.len()] } });
        let piece = |stride| {
            json!({ "source": "w", "source_offset": 0, "source_strides": [stride], "shape": [length], "offset": 0,
                "strides": [1] })
        };
        let of = |stride| json!({ "dtype": "uint8", "shape": [length], "pieces": [piece(stride)] });
        let plan = plan(sources, json!({ "p": of(2), "q": of(1) })).to_string();
        std::fs::write(folder.join("model.safetensors"), safetensors(&[("w", "U8", &[40_000], &memory)])).unwrap();
        let found = expect(&plan, Some(&folder), &[], 0).unwrap();
        assert_eq!(found[KEY], json!(hex(&sha256(&every_second))), "{length}");
        let in_place = &found["dp0:pp0:pcp0:tp0:q"];
        assert_eq!(*in_place, json!(hex(&sha256(&memory[..length as usize]))), "{length}");
        let trees = expect(&plan, Some(&folder), &[], 1).unwrap();
        assert_eq!(trees[KEY], tree_of(&Tensor::bytes("p", &every_second)), "{length}");
    }
}

/// A parameter of `dtype` whose pieces have two elements each, one behind the other.
fn pair(dtype: &str, pieces: &[Value]) -> Value {
    let place = |(number, piece): (usize, &Value)| {
        let mut piece = piece.clone();
        (piece["shape"], piece["strides"], piece["offset"]) = (json!([2]), json!([1]), json!(2 * number));
        piece
    };
    let all: Vec<Value> = pieces.iter().enumerate().map(place).collect();
    json!({ "dtype": dtype, "shape": [2 * pieces.len()], "pieces": all })
}

#[test]
fn zero_in_every_dtype() {
    // As torch fills them: no bit is set.
    for (dtype, size) in [
        ("float64", 8),
        ("float16", 2),
        ("uint64", 8),
        ("bool", 1),
        ("complex32", 4),
        ("complex64", 8),
        ("complex128", 16),
        ("float8_e4m3fnuz", 1),
        ("float8_e5m2fnuz", 1),
        ("float8_e8m0fnu", 1),
        ("float4_e2m1fn_x2", 1),
    ] {
        let plan =
            plan(json!({}), json!({ "p": pair(dtype, &[json!({ "constant": 0 }), json!({ "constant": false })]) }));
        let found = expect(&plan.to_string(), None, &[], 0).unwrap();
        assert_eq!(found[KEY], json!(hex(&sha256(&vec![0; 4 * size]))), "{dtype}");
    }
}

#[test]
fn constants_that_their_type_does_not_hold() {
    let text = |constant: &str, dtype: &str, via: &Value| {
        let piece = pair(dtype, &[json!({ "constant": "HERE", "via": via })]);
        plan(json!({}), json!({ "p": piece })).to_string().replace("\"HERE\"", constant)
    };
    let (no, int32) = (json!([]), json!(["int32", "int64"]));
    // torch's fill_ refuses each of these.
    for (constant, dtype, via, word) in [
        ("18446744073709551616", "uint64", &no, "uint64"),
        ("-9223372036854775809", "int64", &no, "int64"),
        ("18446744073709551616", "float64", &no, "uint64"),
        ("-9223372036854775809", "complex64", &no, "int64"),
        ("9223372036854775808", "int64", &no, "int64"),
        ("-129", "int8", &no, "int8"),
        ("256", "uint8", &no, "uint8"),
        ("2147483648", "int8", &int32, "int32"),
        ("1e39", "float32", &no, "float32"),
        ("1e999", "float64", &no, "float64"),
    ] {
        let plan = text(constant, dtype, via);
        assert_eq!(expect(&plan, None, &[], 0).unwrap_err(), Status::BadPlan, "{constant} in {dtype}");
        let message = common::last_error();
        assert!(["parameter 'p'", "piece 0", constant, word].iter().all(|part| message.contains(part)), "{message}");
    }
    for (constant, dtype, via) in [
        ("18446744073709551615", "uint64", &no),
        ("-9223372036854775808", "int64", &no),
        ("18446744073709551616.0", "float64", &no),
        ("1e30", "float32", &no),
        ("2147483647", "int8", &int32),
        ("-0", "int8", &no),
    ] {
        expect(&text(constant, dtype, via), None, &[], 0).unwrap();
    }
}

#[test]
fn what_cannot_be_put_together_is_left_out() {
    let data = [1u8, 2];
    let bytes = Tensor::bytes("w", &data);
    let copy = json!({ "source": "w", "source_offset": 0, "source_strides": [1] });
    let lost = json!({ "source": "lost", "source_offset": 0, "source_strides": [1] });
    let through = json!({ "source": "w", "source_offset": 0, "source_strides": [1], "via": ["float8_e5m2fnuz"] });
    let fine = json!({ "dtype": "uint8", "shape": [1u64 << 42], "pieces": [
        { "constant": 0, "shape": [1u64 << 41], "offset": 0, "strides": [2] },
        { "constant": 0, "shape": [1u64 << 40], "offset": 1, "strides": [3] },
    ] });
    let sources = json!({ "w": { "dtype": "uint8", "shape": [2] }, "lost": { "dtype": "uint8", "shape": [2] } });
    let mut left_out = json!({
        "fnuz": pair("float8_e4m3fnuz", &[json!({ "constant": 1 })]),
        "complex": pair("complex64", std::slice::from_ref(&copy)),
        "e8m0": pair("float8_e8m0fnu", &[json!({ "constant": 0, "via": ["float32"] })]),
        "through": pair("uint8", &[through]),
        // What only such a parameter reads is not asked for.
        "lost": pair("float8_e8m0fnu", &[lost]),
        "fine": fine,
    });
    let text = plan(sources.clone(), left_out.clone()).to_string();
    assert_eq!(expect(&text, None, &[bytes], 0).unwrap_err(), Status::BadPlan);
    for word in ["parameter 'fnuz'", "piece 0", "float8_e4m3fnuz"] {
        assert!(common::last_error().contains(word), "{}", common::last_error());
    }
    left_out["p"] = pair("uint8", &[copy]);
    let found = expect(&plan(sources, left_out).to_string(), None, &[Tensor::bytes("w", &data)], 0).unwrap();
    assert_eq!(found, json!({ KEY: hex(&sha256(&data)) }));
}

#[test]
fn what_ranks_hold_alike_and_scalars_and_what_cannot_be_told() {
    let value = 2.5f32.to_le_bytes();
    let scalar = Tensor::new("w", value.as_ptr(), FLOAT32, &[]);
    let copy =
        json!({ "source": "w", "source_offset": 0, "source_strides": [], "shape": [], "offset": 0, "strides": [] });
    let computed = json!({ "computed": "sum", "sources": ["w"], "shape": [], "offset": 0, "strides": [] });
    let of = |pieces: &[&Value]| json!({ "dtype": "float32", "shape": [], "pieces": pieces });
    let parameters = json!({ "z": of(&[&copy]), "a": of(&[&copy]), "c": of(&[&copy, &computed]), "u": of(&[]) });
    let mut document = plan(json!({ "w": { "dtype": "float32", "shape": [] } }), parameters);
    let mut second = document["ranks"][0].clone();
    second["rank"]["tp"] = json!(1);
    document["ranks"].as_array_mut().unwrap().push(second);
    let found = expect(&document.to_string(), None, &[scalar], 0).unwrap();
    let keys: Vec<&String> = found.as_object().unwrap().keys().collect();
    let expected = ["dp0:pp0:pcp0:tp0:z", "dp0:pp0:pcp0:tp0:a", "dp0:pp0:pcp0:tp1:z", "dp0:pp0:pcp0:tp1:a"];
    assert_eq!(keys, expected);
    assert!(found.as_object().unwrap().values().all(|digest| *digest == json!(hex(&sha256(&value)))));
}
