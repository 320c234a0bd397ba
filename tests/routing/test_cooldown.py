"""What failures and successes do to keys, as tables and as properties."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.errors import (
    LocalFault,
    UpstreamError,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamOverloaded,
    UpstreamRefusedKey,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnknownModel,
)
from routecodex.routing.cooldown import (
    DEFAULT,
    SKEW,
    Cooldown,
    CooldownOptions,
    HealthState,
    after_success,
    condition,
    cooldown_reason,
    cooling_until,
    failure_impact,
    probes,
    record_failure,
    reset,
    unusable,
    without_refused_keys,
)
from routecodex.routing.registry import Selector, Target

NOW = 1_000_000.0
TARGET = Target("glm", "primary", "glm-4.7")
SISTER = Target("glm", "primary", "glm-4.5-air")
OTHER_KEY = Target("glm", "backup", "glm-4.7")
KEY = Selector("glm", "primary")
KEY_AND_MODEL = Selector("glm", "primary", "glm-4.7")


def limited(retry_after: float | None = None) -> UpstreamError:
    return UpstreamLimited("slow down", upstream_status=429, retry_after=retry_after)


def quota() -> UpstreamError:
    return UpstreamLimited("pay first", upstream_status=429, code="insufficient_quota", retry_after=1)


def refused() -> UpstreamError:
    return UpstreamRefusedKey("wrong key", upstream_status=401)


def unknown() -> UpstreamError:
    return UpstreamUnknownModel("no such model", upstream_status=404)


def broken(retry_after: float | None = None) -> UpstreamError:
    return UpstreamFailed("it broke", upstream_status=500, retry_after=retry_after)


def unconnected() -> UpstreamError:
    return UpstreamFailed("nobody listens")


def after_failure(
    state: HealthState,
    target: Target,
    error: UpstreamError,
    *,
    now: float,
    options: CooldownOptions = DEFAULT,
) -> HealthState:
    impact = failure_impact(target, error)
    return state if impact is None else record_failure(state, impact, now=now, options=options)


def after(*errors: UpstreamError, state: HealthState | None = None, now: float = NOW) -> HealthState:
    for error in errors:
        state = after_failure(state or {}, TARGET, error, now=now)
    return state or {}


def steps(error: UpstreamError, *, count: int) -> list[float]:
    """How long the target is out after each failure, when each comes as soon as it may be used again."""
    state: HealthState = {}
    now, spans = NOW, []
    for _ in range(count):
        state = after_failure(state, TARGET, error, now=now)
        end = cooling_until(state, TARGET, now) or now
        spans.append(end - now)
        now = end
    return spans


# By the table of the module: the error, how often, how long it is out, and whether only for that model.
ROWS: dict[str, tuple[UpstreamError, int, float, bool]] = {
    "429": (limited(), 1, 3.0, False),
    "429 with Retry-After": (limited(42), 1, 42.0, False),
    "429 with Retry-After 0": (limited(0), 1, 3.0, False),
    "429 with Retry-After past the cap": (limited(86_400), 1, 900.0, False),
    "429 with Retry-After past all numbers": (limited(math.inf), 1, 900.0, False),
    "quota exhausted": (quota(), 1, 600.0, False),
    "402": (UpstreamLimited("pay first", upstream_status=402, code="x"), 1, 600.0, False),
    "401": (refused(), 1, 600.0, False),
    "403": (UpstreamRefusedKey("no", upstream_status=403), 1, 600.0, False),
    "one 5xx": (broken(), 1, 0.0, True),
    "two 5xx": (broken(), 2, 0.0, True),
    "three 5xx": (broken(), 3, 5.0, True),
    "three timeouts": (UpstreamTimeout("silence"), 3, 5.0, True),
    "three overloads": (UpstreamOverloaded("busy", upstream_status=529), 3, 5.0, True),
    "three overloads told in the stream": (UpstreamOverloaded("busy"), 3, 5.0, True),
    "three answers cut off": (UpstreamFailed("cut", code="upstream_truncated"), 3, 5.0, True),
    "two overloads with Retry-After": (
        UpstreamOverloaded("busy", upstream_status=503, retry_after=30),
        2,
        0.0,
        True,
    ),
    "three 503 with Retry-After": (broken(30), 3, 30.0, True),
    "three 503 with a short Retry-After": (broken(1), 3, 5.0, True),
    "three 503 with Retry-After past the cap": (broken(86_400), 3, 900.0, True),
    "two without connection": (unconnected(), 2, 0.0, False),
    "three without connection": (unconnected(), 3, 5.0, False),
    "this machine at fault": (LocalFault("no descriptors"), 9, 0.0, True),
    "the request at fault": (UpstreamRejected("no", upstream_status=400), 9, 0.0, True),
    "404": (UpstreamRejected("no", upstream_status=404, status=404), 9, 0.0, True),
    "no such model": (unknown(), 1, 600.0, True),
}


@pytest.mark.parametrize(("error", "count", "span", "model_only"), ROWS.values(), ids=ROWS)
def test_an_outcome_has_the_effect_of_its_row(
    error: UpstreamError, count: int, span: float, model_only: bool
) -> None:
    state = after(*[error] * count)
    assert cooling_until(state, TARGET, NOW) == (NOW + span if span else 0.0)
    assert cooling_until(state, SISTER, NOW) == (NOW + span if span and not model_only else 0.0)
    assert cooling_until(state, OTHER_KEY, NOW) == 0.0
    assert cooling_until(state, TARGET, NOW + span) == 0.0
    assert bool(cooldown_reason(state, TARGET, NOW)) == bool(span)


LADDERS: dict[str, tuple[UpstreamError, list[float]]] = {
    "429": (limited(), [3, 10, 30, 60, 60, 60]),
    "429 with Retry-After": (limited(7), [7, 7, 7]),
    "quota": (quota(), [600, 1200, 2400, 4800, 7200, 7200]),
    "refused": (refused(), [600, 600, 600]),
    "no such model": (unknown(), [600, 600, 600]),
    "5xx": (broken(), [0, 0, 5, 10, 20, 40, 60, 60]),
    "connection": (unconnected(), [0, 0, 5, 10, 20, 40, 60, 60]),
}


@pytest.mark.parametrize(("error", "spans"), LADDERS.values(), ids=LADDERS)
def test_strikes_climb_the_ladder_up_to_its_last_step(error: UpstreamError, spans: list[float]) -> None:
    assert steps(error, count=len(spans)) == spans


@pytest.mark.parametrize(("error", "spans"), LADDERS.values(), ids=LADDERS)
def test_success_starts_the_ladder_again(error: UpstreamError, spans: list[float]) -> None:
    assert after_success(after(*[error] * 5), TARGET, NOW) == {}


def test_failures_of_requests_that_began_before_are_no_new_strikes() -> None:
    state = after(*[limited()] * 20)
    assert cooling_until(state, TARGET, NOW) == NOW + 3
    state = after(*[broken()] * 20)
    assert state[KEY_AND_MODEL].strikes == 3
    assert cooling_until(state, TARGET, NOW) == NOW + 5


def test_a_later_retry_after_extends_and_an_earlier_one_does_not_shorten() -> None:
    state = after(limited(30), limited(5))
    assert cooling_until(state, TARGET, NOW) == NOW + 30
    assert cooling_until(after(limited(90), state=state), TARGET, NOW) == NOW + 90


def test_another_trouble_does_not_shorten_what_a_key_has_to_wait() -> None:
    assert cooling_until(after(quota(), limited(), *[unconnected()] * 5), TARGET, NOW) == NOW + 600
    assert cooling_until(after(*[unconnected()] * 3, limited(60)), TARGET, NOW) == NOW + 60


def test_success_resets_the_key_and_that_model_alone() -> None:
    state = after_failure(after(limited(60), *[broken()] * 3), SISTER, broken(), now=NOW)
    state = after_failure(state, OTHER_KEY, limited(60), now=NOW)
    left = after_success(state, TARGET, NOW)
    assert left.keys() == {Selector("glm", "primary", "glm-4.5-air"), Selector("glm", "backup")}


def test_success_of_what_is_well_gives_the_same_object() -> None:
    empty: HealthState = {}
    assert after_success(empty, TARGET, NOW) is empty
    state = after(limited())
    assert after_success(state, OTHER_KEY, NOW) is state


def test_success_of_an_attempt_that_began_before_lifts_nothing() -> None:
    state = after(limited(60))
    assert after_success(state, TARGET, NOW + 1, began=NOW - 1) is state
    assert after_success(state, TARGET, NOW + 61, began=NOW + 60) == {}


def test_an_open_breaker_becomes_half_open_and_asks_for_a_probe() -> None:
    state = after(*[broken()] * 3)
    cooldown = state[KEY_AND_MODEL]
    assert condition(cooldown, NOW) == "open"
    assert probes(state, TARGET, NOW) == ()
    assert condition(cooldown, NOW + 5) == "half-open"
    assert probes(state, TARGET, NOW + 5) == (KEY_AND_MODEL,)
    assert probes(state, SISTER, NOW + 5) == ()
    again = after(broken(), state=state, now=NOW + 5)
    assert cooling_until(again, TARGET, NOW + 5) == NOW + 15


def test_a_refused_key_is_probed_and_a_cooled_one_is_not() -> None:
    state = after(refused())
    assert condition(state[KEY], NOW) == "refused"
    assert probes(state, TARGET, NOW + 600) == (KEY,)
    assert probes(after(limited()), TARGET, NOW + 3) == ()
    assert condition(after(limited())[KEY], NOW) == "cooling"
    assert condition(after(limited())[KEY], NOW + 3) is None


@pytest.mark.parametrize("error", [broken(), unconnected(), UpstreamTimeout("silence")])
def test_a_probe_that_breaks_leaves_the_key_refused_until_the_next(error: UpstreamError) -> None:
    state = after(error, state=after(refused()), now=NOW + 600)
    assert state[KEY].reason == "key refused"
    assert cooling_until(state, TARGET, NOW + 600) == NOW + 1200


def test_an_unknown_model_is_probed_like_a_refused_key() -> None:
    state = after(unknown())
    assert condition(state[KEY_AND_MODEL], NOW) == condition(state[KEY_AND_MODEL], NOW + 600) == "refused"
    assert probes(state, TARGET, NOW + 600) == (KEY_AND_MODEL,)
    assert probes(state, SISTER, NOW + 600) == ()
    assert unusable(state, TARGET, NOW + 700) == state[KEY_AND_MODEL]
    assert unusable(state, SISTER, NOW) is None


@pytest.mark.parametrize("error", [broken(), UpstreamTimeout("silence")])
@pytest.mark.parametrize("later", [1.0, 600.0], ids=["an older attempt", "the probe"])
def test_a_failure_leaves_the_model_unknown_until_the_next_probe(error: UpstreamError, later: float) -> None:
    state = after(error, state=after(unknown()), now=NOW + later)
    assert state.keys() == {KEY_AND_MODEL}
    assert state[KEY_AND_MODEL].reason == "model unknown"
    assert cooling_until(state, TARGET, NOW + later) == NOW + (1200 if later == 600 else 600)


def test_a_broken_probe_leaves_key_and_model_out() -> None:
    state = after(broken(), state=after(unknown(), refused()), now=NOW + 600)
    assert {key: (entry.reason, entry.until) for key, entry in state.items()} == {
        KEY: ("key refused", NOW + 1200),
        KEY_AND_MODEL: ("model unknown", NOW + 1200),
    }


def test_a_probe_that_is_limited_proves_the_key() -> None:
    state = after(limited(), state=after(refused()), now=NOW + 600)
    assert state[KEY].reason == "limited"
    assert cooling_until(state, TARGET, NOW + 600) == NOW + 603


def test_a_clock_set_back_a_little_keeps_a_key_out_no_longer_than_its_cap() -> None:
    state = after(limited(900))
    assert cooling_until(state, TARGET, NOW - SKEW) == NOW - SKEW + 900


@pytest.mark.parametrize("error", [limited(900), quota(), refused(), broken()])
def test_a_clock_set_back_by_a_day_frees_every_key(error: UpstreamError) -> None:
    state = after(*[error] * 3)
    now = NOW - 86_400
    assert cooling_until(state, TARGET, now) == 0.0
    assert cooling_until(after(error, state=state, now=now), TARGET, now) <= now + DEFAULT.quota_max


def test_an_end_further_away_than_its_cap_counts_as_the_cap() -> None:
    state = {KEY: Cooldown(reason="limited", noted=NOW, until=NOW + 1e9)}
    assert cooling_until(state, TARGET, NOW) == NOW + 900
    assert cooling_until(state, TARGET, NOW + 900) == 0.0


def test_why_names_the_key_the_time_and_the_error() -> None:
    told = cooldown_reason(after(limited(12)), TARGET, NOW)
    assert told == "glm.primary is cooling for 12 s (limited: slow down)"
    assert cooldown_reason(after(*[broken()] * 3), TARGET, NOW).startswith(
        "glm.primary.glm-4.7 is open for 5 s (failing"
    )
    assert cooldown_reason({}, TARGET, NOW) == ""


RESETS: dict[str, tuple[Selector | None, set[str]]] = {
    "everything": (None, set()),
    "a provider": (Selector("glm"), {"openai.primary"}),
    "a key": (Selector("glm", "primary"), {"glm.backup.glm-4.7", "openai.primary"}),
    "a model": (
        Selector("glm", model="glm-4.5-air"),
        {"glm.primary.glm-4.7", "glm.backup.glm-4.7", "openai.primary"},
    ),
    "a target": (
        Selector("glm", "primary", "glm-4.7"),
        {"glm.primary.glm-4.5-air", "glm.backup.glm-4.7", "openai.primary"},
    ),
    "nobody": (
        Selector("gemini"),
        {
            "glm.primary",
            "glm.primary.glm-4.7",
            "glm.primary.glm-4.5-air",
            "glm.backup.glm-4.7",
            "openai.primary",
        },
    ),
}


@pytest.mark.parametrize(("selector", "left"), RESETS.values(), ids=RESETS)
def test_reset_takes_all_that_keeps_the_named_from_use(selector: Selector | None, left: set[str]) -> None:
    state = after(limited(), broken())
    state = after_failure(state, SISTER, broken(), now=NOW)
    state = after_failure(state, OTHER_KEY, broken(), now=NOW)
    state = after_failure(state, Target("openai", "primary", "gpt-5"), refused(), now=NOW)
    assert {str(place) for place in reset(state, selector)} == left


def test_a_new_configuration_forgives_refused_keys_and_unknown_models_and_no_other() -> None:
    state = after_failure(after(refused(), unknown()), OTHER_KEY, limited(), now=NOW)
    assert without_refused_keys(state).keys() == {Selector("glm", "backup")}


def test_what_is_kept_of_an_error_fits_into_a_store() -> None:
    error = UpstreamLimited("half \ud83d " + "x" * 10_000, upstream_status=10**30)
    cooldown = after(error)[KEY]
    assert len(cooldown.error) == 300
    assert cooldown.status is None
    assert msgspec.json.decode(msgspec.json.encode(cooldown), type=Cooldown) == cooldown


def test_the_numbers_are_options() -> None:
    options = CooldownOptions(ladder=(1.0,), failures=1, opening=(2.0,), retry_after_max=0.0)
    state = after_failure({}, TARGET, limited(50), now=NOW, options=options)
    assert cooling_until(state, TARGET, NOW, options=options) == NOW + 1
    state = after_failure({}, TARGET, broken(), now=NOW, options=options)
    assert cooling_until(state, TARGET, NOW, options=options) == NOW + 2


TARGETS = [TARGET, SISTER, OTHER_KEY]
WAITS = st.none() | st.floats(allow_nan=True, allow_infinity=True)
ERRORS = st.one_of(
    WAITS.map(limited),
    st.builds(quota),
    st.builds(refused),
    WAITS.map(broken),
    st.builds(unconnected),
    st.builds(UpstreamTimeout, st.text()),
    st.builds(UpstreamRejected, st.text()),
)
OUTCOMES = st.lists(
    st.tuples(st.sampled_from(TARGETS), st.none() | ERRORS, st.floats(-1e6, 1e6, allow_nan=False))
)


@given(OUTCOMES)
def test_whatever_happens_no_wait_passes_its_cap_and_success_ends_it(
    outcomes: list[tuple[Target, UpstreamError | None, float]],
) -> None:
    state: HealthState = {}
    now = latest = NOW
    for target, error, pause in outcomes:
        now += pause
        # The clock may be set back: a cooldown noted before lasts until its cap by the clock of that time.
        latest = max(latest, now)
        if error is None:
            state = after_success(state, target, now)
            assert cooling_until(state, target, now) == 0.0
            assert probes(state, target, now) == ()
        else:
            state = after_failure(state, target, error, now=now)
        for one in TARGETS:
            end = cooling_until(state, one, now)
            assert end == 0.0 or now < end <= now + DEFAULT.quota_max
            assert cooling_until(state, one, latest + DEFAULT.quota_max + SKEW) == 0.0
        assert len(state) <= 5


@given(OUTCOMES)
def test_a_target_that_only_succeeds_is_always_available(
    outcomes: list[tuple[Target, UpstreamError | None, float]],
) -> None:
    healthy = Target("openai", "primary", "gpt-5")
    state: HealthState = {}
    for target, error, _ in outcomes:
        state = after_success(state, healthy, NOW)
        state = state if error is None else after_failure(state, target, error, now=NOW)
        assert cooling_until(state, healthy, NOW) == 0.0
