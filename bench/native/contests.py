"""Which contestants are compared on which workloads, and the goals. A contest is one model in one
precision; its entries alternate."""

from __future__ import annotations

from dataclasses import dataclass

PROMPT = 32
NEW = 64
LONG = 512
OURS = "ours"
MODULES = {
    OURS: "bench.native.ours",
    "llama.cpp": "bench.native.peer_llama_cpp",
    "CTranslate2": "bench.native.peer_ctranslate2",
    "OpenVINO": "bench.native.peer_openvino",
}
WEIGHT_BYTES = {
    "float32": 4.0,
    "f16": 2.0,
    "int8": 1.0,
    "q8_0": 34 / 32,
    "q4_0": 18 / 32,
    "q4_1": 20 / 32,
}  # of a peer's embedding


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant, and its own name for the precision."""

    who: str
    kind: str

    @property
    def label(self) -> str:
        return f"{self.who} {self.kind}"


@dataclass(frozen=True, slots=True)
class Goal:
    """A multiple of the best peer, or of the one it names, and a share of the machine's
    bandwidth."""

    ratio: float | None = None
    bandwidth: float | None = None
    against: str = ""


LLAMA = "llama.cpp"
CT2 = "CTranslate2"
OPENVINO = "OpenVINO"
DECODERS: dict[str, tuple[Entry, ...]] = {
    "float32": (Entry(OURS, "float32"), Entry(CT2, "float32")),
    "float16": (Entry(OURS, "float16"), Entry(LLAMA, "f16"), Entry(OPENVINO, "f16")),
    "int8": (
        Entry(OURS, "int8"),
        Entry(OURS, "int8_groups"),
        Entry(LLAMA, "q8_0"),
        Entry(CT2, "int8"),
        Entry(OPENVINO, "q8_0"),
    ),
    "int4": (
        Entry(OURS, "int4"),
        Entry(OURS, "int4_min"),
        Entry(LLAMA, "q4_0"),
        Entry(LLAMA, "q4_1"),
        Entry(OPENVINO, "q4_0"),
    ),
}
OTHERS: dict[str, tuple[Entry, ...]] = {
    "float32": (Entry(OURS, "float32"), Entry(CT2, "float32")),
    "int8": (Entry(OURS, "int8"), Entry(CT2, "int8")),
}
STREAMS: dict[str, tuple[Entry, ...]] = {
    "int8": (Entry(OURS, "int8"), Entry(OURS, "int8_groups"), Entry(LLAMA, "q8_0")),
    "int4": (Entry(OURS, "int4"), Entry(LLAMA, "q4_0")),
}
LOOKUP: dict[str, tuple[Entry, ...]] = {
    "int8": (Entry(OURS, "int8"),),
    "int4": (Entry(OURS, "int4"),),
}
SMALL = ("smollm2", "gpt2")
LARGE = "llama-1b"


@dataclass(frozen=True, slots=True)
class Contest:
    """One model in one precision, and the workloads measured on it."""

    model: str
    precision: str
    entries: tuple[Entry, ...]
    works: tuple[str, ...]


def goal_of(work: str, precision: str, model: str) -> Goal:
    """The goal for a workload."""
    if work == "decode" and precision in ("int8", "int4"):
        return Goal(1.5 if model == LARGE else 2.0, 0.90 if precision == "int8" else 0.80)
    if "streams" in work:
        return Goal(1.5)
    table = {
        ("lookup", "int8"): 1.0,
        ("lookup", "int4"): 1.0,
        ("prefill", "int8"): 1.4,
        ("prefill", "float32"): 1.1,
        ("encode", "int8"): 1.3,
        ("encode", "float32"): 1.1,
        ("translate, one greedy", "int8"): 2.0,
        ("translate, eight by four beams", "int8"): 1.3,
    }
    return Goal(table.get((work, precision)), against=CT2 if work == "prefill" else "")


def contests(works: tuple[str, ...], *, large: bool, models: tuple[str, ...] = ()) -> list[Contest]:
    """All contests of these workloads. One billion parameters run in eight and four bits only: the
    goals are set there, and memory suffices."""
    all_contests = list[Contest]()
    decoding = tuple(work for work in works if work in ("decode", "prefill"))
    for model in (*SMALL, *((LARGE,) if large else ())) if decoding else ():
        precisions = ("int8", "int4") if model == LARGE else tuple(DECODERS)
        all_contests += [
            Contest(model, precision, DECODERS[precision], decoding) for precision in precisions
        ]
    others = (
        ("streams", "smollm2", STREAMS),
        ("lookup", "smollm2", LOOKUP),
        ("encode", "minilm", OTHERS),
        ("translate", "marian", OTHERS),
    )
    for work, model, table in others:
        if work in works:
            all_contests += [
                Contest(model, precision, entries, (work,)) for precision, entries in table.items()
            ]
    return [contest for contest in all_contests if not models or contest.model in models]
