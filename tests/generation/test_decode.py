"""Decoding: the same tokens however the prompt is fed, however it is watched, and as transformers
makes them."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.generation.decode import Request, decode
from sightline.generation.sampling import Sampling
from tests.families.oracle import ours, reference
from tests.support.decoder_configs import GPT2, LLAMA
from tests.support.tiny import ENCODER_DECODERS, GENERATORS, make

PROMPT = [3, 7, 1, 4, 9, 2, 8]
SOURCE = [5, 6, 7, 8]


def request(name: str, **changes: object) -> Request:
    source = SOURCE if name in ENCODER_DECODERS else None
    return Request(**({"prompt": PROMPT, "max_tokens": 12, "source": source} | changes))


def without_cache(model: sl.Transformer, wanted: Request) -> list[int]:
    """Greedy, the whole text anew for every token."""
    tokens = list(wanted.prompt)
    source = {} if wanted.source is None else {"source": torch.tensor([list(wanted.source)])}
    for _ in range(wanted.max_tokens):
        tokens.append(int(model(torch.tensor([tokens]), **source)[0, -1].argmax()))
    return tokens[len(wanted.prompt) :]


@pytest.mark.parametrize("chunk", [1, 3, 512])
@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.usefixtures("as_users_run_it")  # the same shapes as in the law of cached = whole
def test_cached_greedy_is_uncached_greedy(name: str, chunk: int) -> None:
    model = make(GENERATORS[name])
    result = [event.token for event in decode(model, request(name), chunk=chunk)]
    assert result == without_cache(model, request(name))


@pytest.mark.parametrize("name", ["rotary", "transformer"])
def test_a_cache_with_a_prefix_is_used(name: str) -> None:
    model, wanted = make(GENERATORS[name]), request(name)
    plain = [event.token for event in decode(model, wanted)]
    for held in (3, len(PROMPT), len(PROMPT)):
        cache = sl.Cache.growing(model.config)
        source = {} if wanted.source is None else {"source": torch.tensor([SOURCE])}
        model(torch.tensor([PROMPT[:held]]), cache=cache, **source)
        assert [event.token for event in decode(model, wanted, cache=cache)] == plain


def test_events_describe_the_steps() -> None:
    model = make(GENERATORS["rotary"])
    events = list(decode(model, request("rotary", alternatives=3, max_tokens=5)))
    assert [event.finish for event in events] == [None, None, None, None, "length"]
    for event in events:
        assert event.alternatives[0] == (event.token, pytest.approx(event.logprob))
        assert event.logprob < 0 < event.step_seconds
    assert events[-1].cache_bytes > events[0].cache_bytes
    ended = list(decode(model, request("rotary", end=(events[2].token,))))
    assert ended[-1].finish == "stop"
    assert len(ended) <= 3


def test_the_same_seed_gives_the_same_text_and_another_another() -> None:
    model = make(GENERATORS["rotary"])

    def sampled(seed: int) -> list[int]:
        return [
            event.token
            for event in decode(
                model,
                request("rotary", sampling=Sampling(temperature=1.5, seed=seed), max_tokens=20),
            )
        ]

    assert sampled(1) == sampled(1) != sampled(2)


@pytest.mark.parametrize(
    ("class_name", "options"), [("GPT2LMHeadModel", GPT2), ("LlamaForCausalLM", LLAMA)]
)
def test_greedy_is_transformers_greedy(class_name: str, options: dict[str, object]) -> None:
    theirs = reference(class_name, options)
    expected = theirs.generate(
        torch.tensor([PROMPT]),
        max_new_tokens=32,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )[0, len(PROMPT) :]
    result = [
        event.token
        for event in decode(ours(theirs).transformer, Request(prompt=PROMPT, max_tokens=32))
    ]
    assert result == expected.tolist()


REFUSED = {
    "an empty prompt": ("rotary", {"prompt": []}, "an empty prompt"),
    "no tokens": ("rotary", {"max_tokens": 0}, "max_tokens is 0"),
    "a prompt past the context": (
        "rotary",
        {"prompt": [1] * 48},
        "a prompt of 48 tokens for a context of 48; expected at most 47",
    ),
    "more than there is room for": ("rotary", {"max_tokens": 42}, "Fix: max_tokens=41"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_continued(what: str) -> None:
    name, changes, words = REFUSED[what]
    with pytest.raises(sl.InputError) as refusal:
        next(decode(make(GENERATORS[name]), request(name, **changes)))
    assert words in str(refusal.value)


def test_an_encoder_does_not_generate() -> None:
    from tests.support.tiny import CLASSIFIERS, ENCODERS

    for config in (ENCODERS["bert"], CLASSIFIERS["decoder-classifier"]):
        with pytest.raises(sl.InputError, match="use fill, classify or embed"):
            next(decode(make(config), Request(prompt=PROMPT, max_tokens=3)))


def test_who_looks_on_is_asked_before_each_pass_and_changes_nothing() -> None:
    model, handed = make(GENERATORS["transformer"]), list[sl.Recorder]()

    def watch() -> sl.Recorder:
        handed.append(sl.Recorder({"cross_query", "query"}))
        return handed[-1]

    events = list(decode(model, request("transformer"), chunk=3, watch=watch))
    quiet = list(decode(model, request("transformer"), chunk=3))
    assert [(event.token, event.logprob) for event in events] == [
        (event.token, event.logprob) for event in quiet
    ]
    assert [recorder["decoder", 1, "query"].shape[2] for recorder in handed] == [3, 3, 1] + [
        1
    ] * 11, "three chunks, then token by token"
    assert [event.recording for event in events] == handed[2:], (
        "each event with the pass that made its token"
    )
    assert {event.recording for event in quiet} == {None}
    assert ("encoder", 0, "query") in handed[0].kept, "the source is read in the first pass"
    assert ("encoder", 0, "query") not in handed[1].kept
