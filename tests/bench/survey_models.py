"""How much of many kinds of models can be verified on a real vLLM, and how long a plan takes to record.

    PYTHONPATH=tests/python:tests/bench python tests/bench/survey_models.py [--tp N] [KIND ...]

Every kind of `model_kinds` is made, loaded by an engine with N tensor-parallel ranks, which keeps CPU weights as
loaded, and verified against its checkpoint. The milliseconds are those of the first recording in a worker, the
slowest rank's. Ends with 1 when what could be compared of a model differs, or its plan is incomplete.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from model_kinds import KINDS
from tiny_models import kind
from vllm_engines import run, start

from vllm_weight_checker import CheckError, WeightChecker

LATENT_ATTENTION = ("deepseek_v2", "deepseek_v3", "youtu")
"""The model types whose attention needs a backend of its own to keep weights as loaded."""

IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""The engine in the process of `survey` starts sooner, and says more of why it does not."""

COLUMNS = ("parameters", "compared", "equal")


def recording_milliseconds(worker: Any) -> float:
    """To be run in a worker."""
    from vllm_weight_checker.model import rank_of
    from vllm_weight_checker.recorder import record

    begin = time.perf_counter()
    record(worker, rank_of(worker))
    return (time.perf_counter() - begin) * 1e3


def survey(folder: str, tp: int, latent: bool) -> dict[str, Any]:
    """To be run in a process that has vLLM: the report of a verification, or an error."""
    options = {"attention_backend": "CPU_MLA"} if latent else {}
    llm = start(Path(folder), skip_tokenizer_init=True, max_model_len=64, tensor_parallel_size=tp, **options)
    milliseconds = max(llm.collective_rpc(recording_milliseconds))
    try:
        return {"milliseconds": milliseconds, **WeightChecker(llm).verify()}
    except CheckError as error:
        return {"error": str(error)}


def line(name: str, report: dict[str, Any]) -> str:
    reasons = sorted(set(report["not_comparable"].values()))
    numbers = [*(report[column] for column in COLUMNS), len(report["not_comparable"]), round(report["milliseconds"])]
    verdict = "" if report["match"] else f"NO MATCH: {faults(report)}"
    return f"{name:18}" + "".join(f"{number:>12,}" for number in numbers) + f"  {verdict}{'; '.join(reasons)}"


def faults(report: dict[str, Any]) -> str:
    wrong = ("unplaced", "partly_placed", "unwritten", "overlapping", "past_the_end")
    found = {kind: report["audit"][kind] for kind in wrong if report["audit"][kind]}
    return f"{report['mismatches'][:3]} {str(found)[:300]} "


def cause(error: AssertionError) -> str:
    """The last line of an engine's output that names an exception, without what only says that it did not start."""
    lines = [text.strip() for text in str(error).splitlines() if "Error: " in text and "initialization" not in text]
    return (lines or [str(error).splitlines()[-1]])[-1][-200:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"one of: {', '.join(KINDS)}; default: all")
    arguments = parser.parse_args()
    # The engines' process knows this module by its name.
    from survey_models import survey

    print(f"{'kind':18}" + "".join(f"{title:>12}" for title in (*COLUMNS, "not", "ms")))
    totals, starts, wrong = dict.fromkeys(COLUMNS, 0), 0, 0
    for name in arguments.kinds or KINDS:
        latent = KINDS[name][0] in LATENT_ATTENTION
        try:
            report = run(survey, folder=str(kind(name)), tp=arguments.tp, latent=latent, timeout=300, env=IN_PROCESS)
        except AssertionError as error:
            print(f"{name:18} does not start: {cause(error)}", flush=True)
            continue
        starts += 1
        if "error" in report:
            wrong += 1
            print(f"{name:18} cannot be verified: {report['error'][:300]}", flush=True)
            continue
        wrong += not report["match"]
        totals = {column: totals[column] + report[column] for column in COLUMNS}
        print(line(name, report), flush=True)
    share = totals["compared"] / max(totals["parameters"], 1)
    print(f"{'all':18}" + "".join(f"{totals[column]:>12,}" for column in COLUMNS))
    print(f"{starts} models started, {wrong} of them do not match; {share:.2%} of the parameters can be compared")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
