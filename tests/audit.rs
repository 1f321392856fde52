//! The audit of a small model's plan as a tensor-parallel loader makes it, and of that plan with a loader's faults.

mod common;
mod models;

use std::ffi::{CString, c_char};
use std::ptr;

use common::{json_of, last_error};
use models::{model, piece, rows, tied};
use serde_json::{Value, json};
use weight_checker::ffi::wc_audit;
use weight_checker::status::Status;

fn report(plan: &Value) -> Value {
    let text = CString::new(plan.to_string()).unwrap();
    // SAFETY: the text lives through the call.
    json_of(|out| unsafe { wc_audit(text.as_ptr(), out) }).unwrap()
}

/// The report of a faulty plan, which has entries in the lists `found` and in no others.
#[track_caller]
fn faults(plan: &Value, found: &[&str]) -> Value {
    let report = report(plan);
    assert_eq!(report["complete"], false, "{report:#}");
    for list in ["unplaced", "partly_placed", "unwritten", "overlapping", "past_the_end", "unaudited"] {
        let is_there = report[list].as_array().unwrap().iter().any(|found| found["explained"].is_null());
        assert_eq!(is_there, found.contains(&list), "{list}: {report:#}");
    }
    report
}

fn pieces<'a>(plan: &'a mut Value, rank: usize, parameter: &str) -> &'a mut Vec<Value> {
    plan["ranks"][rank]["parameters"][parameter]["pieces"].as_array_mut().unwrap()
}

#[test]
fn healthy_plans_are_complete() {
    for (tp, stages) in [(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (1, 2)] {
        let report = report(&model(tp, stages));
        assert_eq!(report["complete"], true, "tp {tp}, {stages} stages: {report:#}");
        assert_eq!(report["ranks"], tp * stages);
        assert_eq!(report["placed"], report["sources"]);
    }
}

#[test]
fn ranks_with_the_same_slices_are_replicas() {
    let report = report(&model(8, 1));
    let sets = report["replicas"].as_array().unwrap().iter().map(|set| {
        let ranks = set["ranks"].as_array().unwrap().iter();
        let tp = ranks.map(|rank| rank.as_str().unwrap().strip_prefix("dp0:pp0:pcp0:tp").unwrap());
        (tp.collect::<String>(), set["parameters"].as_u64().unwrap())
    });
    // Two key-value heads for four ranks each; the norms; experts cut into four, twice; three ranks without words.
    let experts = [("04", 2), ("15", 2), ("26", 2), ("37", 2)];
    let expected = [("0123", 1), ("01234567", 2)].into_iter().chain(experts).chain([("4567", 1), ("567", 1)]);
    assert_eq!(sets.collect::<Vec<_>>(), expected.map(|(ranks, count)| (ranks.to_owned(), count)).collect::<Vec<_>>());
}

#[test]
fn every_rank_takes_shard_0() {
    let mut plan = model(4, 1);
    let first = pieces(&mut plan, 0, "o").clone();
    (1..4).for_each(|rank| *pieces(&mut plan, rank, "o") = first.clone());
    let report = faults(&plan, &["partly_placed"]);
    assert_eq!(report["partly_placed"], json!([{"source": "o", "elements": 96, "of": 128, "first": [0, 4]}]));
}

#[test]
fn a_fused_tensor_is_cut_into_equal_thirds() {
    let mut plan = model(4, 1);
    plan["sources"]["qkv"] = json!({"dtype": "bfloat16", "shape": [24, 8]});
    for rank in 0..4 {
        plan["ranks"][rank]["parameters"]["fused"] = json!({"dtype": "bfloat16", "shape": [6, 8], "pieces": [
            rows("qkv", 8, 2 * rank as u64, 2, 0), rows("qkv", 8, 8 + 2 * rank as u64, 1, 4),
            rows("qkv", 8, 16 + 2 * rank as u64, 1, 5),
        ]});
    }
    let report = faults(&plan, &["partly_placed", "unwritten"]);
    assert_eq!(report["partly_placed"], json!([{"source": "qkv", "elements": 64, "of": 192, "first": [9, 0]}]));
    assert_eq!(report["unwritten"].as_array().unwrap().len(), 4);
    assert_eq!(
        report["unwritten"][3],
        json!({"key": "dp0:pp0:pcp0:tp3:fused", "elements": 16, "of": 48, "first": [2, 0]})
    );
}

#[test]
fn an_expert_is_skipped() {
    let mut plan = model(2, 1);
    for rank in 0..2 {
        pieces(&mut plan, rank, "w13").retain(|piece| !piece["source"].as_str().unwrap().starts_with("experts.2."));
        pieces(&mut plan, rank, "w2").retain(|piece| piece["source"] != "experts.2.down");
    }
    let report = faults(&plan, &["unplaced", "unwritten"]);
    let names: Vec<&Value> = report["unplaced"].as_array().unwrap().iter().map(|found| &found["source"]).collect();
    assert_eq!(names, ["experts.2.gate", "experts.2.up", "experts.2.down"]);
    assert_eq!(
        report["unwritten"][0],
        json!({"key": "dp0:pp0:pcp0:tp0:w13", "elements": 32, "of": 128, "first": [2, 0, 0]})
    );
}

#[test]
fn a_name_is_ignored() {
    let mut plan = model(2, 1);
    plan["sources"]["q.bias"] = json!({"dtype": "bfloat16", "shape": [16]});
    let report = faults(&plan, &["unplaced"]);
    assert_eq!(report["unplaced"], json!([{"source": "q.bias", "explained": null}]));
    plan["ranks"][1]["unused"] = json!({"q.bias": "this model has no biases"});
    let explained = self::report(&plan);
    assert_eq!(explained["complete"], true);
    assert_eq!(explained["unplaced"][0]["explained"], "this model has no biases");
    assert_eq!(explained["placed"].as_u64().unwrap() + 1, explained["sources"].as_u64().unwrap());
}

#[test]
fn the_last_rank_reads_past_the_end() {
    let mut plan = model(4, 1);
    // Ten rows over four ranks are three each, of which the last has one.
    *pieces(&mut plan, 3, "embed") = vec![rows("embed", 8, 9, 3, 0)];
    let report = faults(&plan, &["past_the_end"]);
    let key = "dp0:pp0:pcp0:tp3:embed";
    assert_eq!(report["past_the_end"], json!([{"key": key, "source": "embed", "first_beyond": 80, "of": 80}]));
}

#[test]
fn a_piece_leaves_its_parameter() {
    let mut plan = model(1, 1);
    pieces(&mut plan, 0, "norm").insert(0, json!({"constant": 0, "shape": [2], "offset": 6, "strides": [4]}));
    let report = faults(&plan, &["past_the_end"]);
    let key = "dp0:pp0:pcp0:tp0:norm";
    assert_eq!(report["past_the_end"], json!([{"key": key, "source": null, "first_beyond": 10, "of": 8}]));
}

#[test]
fn up_is_missing() {
    let mut plan = model(2, 1);
    (0..2).for_each(|rank| pieces(&mut plan, rank, "gate_up").truncate(1));
    let report = faults(&plan, &["unplaced", "unwritten"]);
    assert_eq!(report["unplaced"], json!([{"source": "up", "explained": null}]));
    assert_eq!(
        report["unwritten"][1],
        json!({"key": "dp0:pp0:pcp0:tp1:gate_up", "elements": 64, "of": 128, "first": [8, 0]})
    );
}

#[test]
fn up_is_put_over_gate() {
    let mut plan = model(2, 1);
    pieces(&mut plan, 1, "gate_up")[1]["offset"] = json!(0);
    let report = faults(&plan, &["unwritten", "overlapping"]);
    let key = "dp0:pp0:pcp0:tp1:gate_up";
    let expected = json!([{"key": key, "elements": 64, "first": [0, 0], "sources": ["gate", "up"]}]);
    assert_eq!(report["overlapping"], expected);
}

#[test]
fn what_is_no_overlap() {
    let mut plan = model(1, 1);
    // The same again, and zeros below what is copied.
    let again = pieces(&mut plan, 0, "o")[0].clone();
    pieces(&mut plan, 0, "o").push(again);
    pieces(&mut plan, 0, "o").insert(0, json!({"constant": 0, "shape": [128], "offset": 0, "strides": [1]}));
    assert_eq!(report(&plan)["complete"], true);
}

fn zeros(elements: u64, offset: u64) -> Value {
    json!({"constant": 0, "shape": [elements], "offset": offset, "strides": [1]})
}

#[test]
fn zeros_over_what_was_copied() {
    let mut plan = model(1, 1);
    pieces(&mut plan, 0, "o").push(zeros(127, 1));
    let partly = json!([{"source": "o", "elements": 127, "of": 128, "first": [0, 1]}]);
    assert_eq!(faults(&plan, &["partly_placed"])["partly_placed"], partly);
    // Together they hide the rest, too.
    pieces(&mut plan, 0, "o").push(zeros(1, 0));
    let unplaced = json!([{"source": "o", "explained": null}]);
    assert_eq!(faults(&plan, &["unplaced"])["unplaced"], unplaced);
    // The same once more on top is seen.
    let again = pieces(&mut plan, 0, "o")[0].clone();
    pieces(&mut plan, 0, "o").push(again);
    assert_eq!(report(&plan)["complete"], true);
}

#[test]
fn zeros_over_columns_of_what_was_turned() {
    let mut plan = tied();
    plan["sources"]["w"] = json!({"dtype": "float32", "shape": [4, 6]});
    let columns = json!({"constant": 0, "shape": [6, 2], "offset": 1, "strides": [4, 2]});
    let turned = [piece("w", [6, 4], 0, [1, 6], 0, [4, 1]), columns];
    plan["ranks"][0]["parameters"]["w"] = json!({"dtype": "float32", "shape": [6, 4], "pieces": turned});
    // Columns 1 and 3 of the parameter are rows of the source.
    let partly = json!([{"source": "w", "elements": 12, "of": 24, "first": [1, 0]}]);
    assert_eq!(faults(&plan, &["partly_placed"])["partly_placed"], partly);
    // What one rank hides is placed when another one shows it.
    let mut other = plan["ranks"][0].clone();
    other["rank"]["tp"] = json!(1);
    other["parameters"]["w"]["pieces"].as_array_mut().unwrap().pop();
    plan["ranks"].as_array_mut().unwrap().push(other);
    assert_eq!(report(&plan)["complete"], true);
}

#[test]
fn what_went_into_arithmetic_is_placed() {
    let mut plan = model(1, 1);
    *pieces(&mut plan, 0, "o") =
        vec![json!({"computed": "added to itself", "sources": ["o"], "shape": [128], "offset": 0, "strides": [1]})];
    assert_eq!(report(&plan)["complete"], true);
}

#[test]
fn a_tied_head_is_explained() {
    let report = report(&tied());
    assert_eq!(report["complete"], true, "{report:#}");
    assert_eq!(report["unplaced"], json!([{"source": "lm_head", "explained": "tied to embed"}]));
}

#[test]
fn other_orders_of_elements() {
    // GPT-2 stores transposed; rotary heads are stored pairwise and held in halves.
    let transposed = piece("w", [6, 4], 0, [1, 6], 0, [4, 1]);
    let halves = [piece("w", [2, 2, 6], 0, [12, 6, 1], 0, [12, 6, 1])];
    let interleaved = (0..2).map(|half| piece("w", [2, 1, 6], 6 * half, [12, 6, 1], 12 * half, [6, 6, 1])).collect();
    for (shape, pieces) in [([6, 4], vec![transposed]), ([4, 6], halves.into()), ([4, 6], interleaved)] {
        let mut plan = tied();
        plan["sources"]["w"] = json!({"dtype": "float32", "shape": [4, 6]});
        plan["ranks"][0]["parameters"]["w"] = json!({"dtype": "float32", "shape": shape, "pieces": pieces});
        assert_eq!(report(&plan)["complete"], true, "{:#}", report(&plan));
        // One column or row less is seen.
        let last = plan["ranks"][0]["parameters"]["w"]["pieces"].as_array_mut().unwrap().last_mut().unwrap();
        last["shape"][0] = json!(last["shape"][0].as_u64().unwrap() - 1);
        faults(&plan, &["partly_placed", "unwritten"]);
    }
}

#[test]
fn what_is_no_plan() {
    // SAFETY: NULL is for the library to refuse, the texts live through the calls.
    let status_of = |text: *const c_char| json_of(|out| unsafe { wc_audit(text, out) }).unwrap_err();
    assert_eq!(status_of(ptr::null()), Status::NullPointer);
    assert!(last_error().contains("plan_json"));
    for text in [c"", c"{}", c"[", c"\xff"] {
        assert_eq!(status_of(text.as_ptr()), Status::BadPlan, "{text:?}");
    }
    for (ranks, word) in [(json!([]), "no rank"), (json!([{"parameters": {}}, {"parameters": {}}]), "no parameter")] {
        let mut plan = model(2, 1);
        plan["ranks"] = ranks;
        for (tp, rank) in plan["ranks"].as_array_mut().unwrap().iter_mut().enumerate() {
            rank["rank"] = json!({"dp": 0, "pp": 0, "pcp": 0, "tp": tp});
        }
        let text = CString::new(plan.to_string()).unwrap();
        assert_eq!(status_of(text.as_ptr()), Status::BadPlan);
        assert!(last_error().contains(word), "{}", last_error());
    }
    // SAFETY: NULL is for the library to refuse.
    assert_eq!(unsafe { wc_audit(c"{}".as_ptr(), ptr::null_mut()) }, Status::NullPointer);
}
