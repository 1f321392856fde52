//! Plans of a small model: hidden size 8, 8 query heads and 2 key-value heads of 2, 4 experts, 10 words.

use serde_json::{Map, Value, json};

const HIDDEN: u64 = 8;
const EXPERTS: u64 = 4;

/// A piece of `source`; strides in elements.
pub fn piece<const N: usize>(
    source: &str,
    shape: [u64; N],
    source_offset: u64,
    source_strides: [u64; N],
    offset: u64,
    strides: [u64; N],
) -> Value {
    json!({
        "source": source, "shape": &shape[..], "source_offset": source_offset, "source_strides": &source_strides[..],
        "offset": offset, "strides": &strides[..],
    })
}

/// `count` rows of `width` elements of `source`, from row `from` on, put to row `to`.
pub fn rows(source: &str, width: u64, from: u64, count: u64, to: u64) -> Value {
    piece(source, [count, width], from * width, [width, 1], to * width, [width, 1])
}

/// The columns of shard `tp` of `of`, of a source with `height` rows of `width` elements, put to element `offset`.
fn columns(source: &str, (height, width): (u64, u64), (tp, of): (u64, u64), offset: u64) -> Value {
    let part = width / of;
    piece(source, [height, part], tp * part, [width, 1], offset, [part, 1])
}

fn document(sources: Map<String, Value>, ranks: Vec<Value>) -> Value {
    json!({"format": "weight-checker-plan", "version": 1, "sources": sources, "ranks": ranks})
}

fn tensor(shape: &[u64]) -> Value {
    json!({"dtype": "bfloat16", "shape": shape})
}

fn parameter(shape: &[u64], pieces: Vec<Value>) -> Value {
    json!({"dtype": "bfloat16", "shape": shape, "pieces": pieces})
}

fn sources() -> Map<String, Value> {
    let mut sources = Map::new();
    let tensors: [(&str, &[u64]); 10] = [
        ("embed", &[10, HIDDEN]),
        ("norm", &[HIDDEN]),
        ("q", &[16, HIDDEN]),
        ("k", &[4, HIDDEN]),
        ("v", &[4, HIDDEN]),
        ("o", &[HIDDEN, 16]),
        ("gate", &[16, HIDDEN]),
        ("up", &[16, HIDDEN]),
        ("down", &[HIDDEN, 16]),
        ("last_norm", &[HIDDEN]),
    ];
    sources.extend(tensors.map(|(name, shape)| (name.to_owned(), tensor(shape))));
    for expert in 0..EXPERTS {
        for (name, shape) in [("gate", [4, HIDDEN]), ("up", [4, HIDDEN]), ("down", [HIDDEN, 4])] {
            sources.insert(format!("experts.{expert}.{name}"), tensor(&shape));
        }
    }
    sources
}

/// Its plan over `tp` ranks, and with the experts and the last norm in a second stage when there are two.
pub fn model(tp: u64, stages: u64) -> Value {
    let ranks = (0..stages).flat_map(|pp| (0..tp).map(move |rank| (pp, rank))).map(|(pp, rank)| {
        let mut parameters = Map::new();
        if pp == 0 {
            dense(&mut parameters, rank, tp);
        }
        if pp + 1 == stages {
            experts(&mut parameters, rank, tp);
        }
        json!({"rank": {"dp": 0, "pp": pp, "pcp": 0, "tp": rank}, "parameters": parameters})
    });
    document(sources(), ranks.collect())
}

fn dense(parameters: &mut Map<String, Value>, rank: u64, tp: u64) {
    let mut add = |name: &str, value| parameters.insert(name.to_owned(), value);
    let words = 10u64.div_ceil(tp);
    let real = words.min(10u64.saturating_sub(rank * words));
    let padding =
        json!({"constant": 0, "shape": [words - real, HIDDEN], "offset": real * HIDDEN, "strides": [HIDDEN, 1]});
    let embed = if real == 0 { vec![padding] } else { vec![rows("embed", HIDDEN, rank * words, real, 0), padding] };
    add("embed", parameter(&[words, HIDDEN], embed));
    add("norm", parameter(&[HIDDEN], vec![piece("norm", [HIDDEN], 0, [1], 0, [1])]));
    let (q, kv) = (16 / tp, (4 / tp).max(2));
    let head = if tp > 2 { rank * 2 / tp } else { rank };
    add("q", parameter(&[q, HIDDEN], vec![rows("q", HIDDEN, rank * q, q, 0)]));
    let pair = vec![rows("k", HIDDEN, head * kv, kv, 0), rows("v", HIDDEN, head * kv, kv, kv)];
    add("kv", parameter(&[2 * kv, HIDDEN], pair));
    add("o", parameter(&[HIDDEN, q], vec![columns("o", (HIDDEN, 16), (rank, tp), 0)]));
    let pair = vec![rows("gate", HIDDEN, rank * q, q, 0), rows("up", HIDDEN, rank * q, q, q)];
    add("gate_up", parameter(&[2 * q, HIDDEN], pair));
    add("down", parameter(&[HIDDEN, q], vec![columns("down", (HIDDEN, 16), (rank, tp), 0)]));
}

/// Up to four ranks cut each expert; more share the cuts.
fn experts(parameters: &mut Map<String, Value>, rank: u64, tp: u64) {
    let (of, shard) = (tp.min(4), rank % tp.min(4));
    let part = 4 / of;
    let (mut w13, mut w2) = (Vec::new(), Vec::new());
    for expert in 0..EXPERTS {
        let at = 2 * part * expert;
        w13.push(rows(&format!("experts.{expert}.gate"), HIDDEN, shard * part, part, at));
        w13.push(rows(&format!("experts.{expert}.up"), HIDDEN, shard * part, part, at + part));
        let name = format!("experts.{expert}.down");
        w2.push(columns(&name, (HIDDEN, 4), (shard, of), expert * HIDDEN * part));
    }
    parameters.insert("w13".to_owned(), parameter(&[EXPERTS, 2 * part, HIDDEN], w13));
    parameters.insert("w2".to_owned(), parameter(&[EXPERTS, HIDDEN, part], w2));
    let norm = vec![piece("last_norm", [HIDDEN], 0, [1], 0, [1])];
    parameters.insert("last_norm".to_owned(), parameter(&[HIDDEN], norm));
}

/// One rank with an embedding that also is the head.
pub fn tied() -> Value {
    let sources = ["embed", "lm_head"].map(|name| (name.to_owned(), tensor(&[10, HIDDEN])));
    let embed = parameter(&[10, HIDDEN], vec![rows("embed", HIDDEN, 0, 10, 0)]);
    let rank = json!({
        "rank": {"dp": 0, "pp": 0, "pcp": 0, "tp": 0},
        "parameters": {"embed": embed},
        "unused": {"lm_head": "tied to embed"},
    });
    document(sources.into_iter().collect(), vec![rank])
}
