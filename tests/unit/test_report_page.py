"""The frame of a page: escaping, the security policy, words and curves."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import numpy as np
import pytest

from multigrid_rl.gates import Gate
from multigrid_rl.judge.runs import Series
from multigrid_rl.show import words as wording
from multigrid_rl.show.charts import POINTS, Chart, Line, limits, plot, thin, ticks
from multigrid_rl.show.html import Raw, join, tag
from multigrid_rl.show.page import SCRIPTS, STYLES, Heading, asset_text, json_block, page
from report_runs import EVIL, EVILS

HEAD = Heading("kind", "title", "lead", (("a", "A"),))

# --- elements


def test_text_is_escaped_and_finished_markup_is_not():
    assert tag("p", EVIL) == "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>"
    assert tag("p", Raw("<b>x</b>"), " & ", 3, None, [tag("i", "y")]) == "<p><b>x</b> &amp; 3<i>y</i></p>"
    assert join("<", tag("br")) == "&lt;<br>"


@pytest.mark.parametrize("evil", EVILS)
def test_no_attribute_can_be_left(evil):
    written = tag("a", "x", title=evil)
    assert re.fullmatch(r'<a title="[^"<>]*">x</a>', written)


def test_attributes_that_the_policy_would_switch_off_are_refused():
    with pytest.raises(ValueError, match="style"):
        tag("p", style="color:red")
    with pytest.raises(ValueError, match="onclick"):
        tag("p", onclick="x()")


def test_attributes_by_kind():
    assert tag("a", aria_label="x", class_="y", hidden=True, title=None, open=False, viewbox="0 0") == (
        '<a aria-label="x" class="y" hidden viewBox="0 0"></a>'
    )


# --- the page


@pytest.mark.parametrize("evil", EVILS)
def test_data_cannot_end_its_block(evil):
    block = json_block("key", {"name": evil, "more": ["<!--", evil]})
    assert block.count("</script>") == 1
    inside = block.removesuffix("</script>").partition(">")[2]
    assert not set("<>&") & set(inside)
    assert json.loads(inside) == {"name": evil, "more": ["<!--", evil]}


def test_the_policy_lets_only_this_pages_own_style_and_script_run():
    text = page(HEAD, tag("p", "x"), data={"a": 1})
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    told = policy[1].replace("&#x27;", "'")
    assert told.startswith("default-src 'none'; ")
    assert "unsafe" not in told
    for kind in ("style", "script"):
        inside = re.search(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        assert inside is not None
        digest = base64.b64encode(hashlib.sha256(inside[1].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in told


def test_a_page_asks_nothing_of_the_network_and_uses_nothing_that_is_switched_off():
    text = page(HEAD, tag("p", "x"), data={"a": 1})
    for word in ("http://", "https://", "//cdn", "@import", "url(h", " style=", "eval(", "innerHTML", "fetch("):
        assert word not in text.replace("http://www.w3.org/2000/svg", ""), word


def test_assets_are_small_and_made_of_plain_characters():
    for name in (*SCRIPTS, *STYLES):
        text = asset_text((name,))
        assert len(text.splitlines()) <= 400, name
        assert text.isascii(), name
    assert "</" not in asset_text(SCRIPTS)


def test_the_same_content_gives_the_same_page():
    assert page(HEAD, tag("p", "x")) == page(HEAD, tag("p", "x"))


# --- words


@pytest.mark.parametrize(
    ("share", "digits", "words"),
    [(0, 0, "0%"), (1, 1, "100.0%"), (0.004, 0, "<1%"), (0.996, 0, ">99%"), (0.25, 0, "25%"), (0.94, 1, "94.0%")],
)
def test_a_share_is_never_written_as_none_or_all_if_it_is_not(share, digits, words):
    assert wording.percent(share, digits) == words


def test_numbers_in_words():
    assert [wording.count(k) for k in (0, 4, 13)] == ["no", "four", "13"]
    assert [wording.plural(k, "game") for k in (1, 1200)] == ["1 game", "1,200 games"]
    assert [wording.short(v) for v in (17.92, 0.2048, 1280.4, -0.0, -0.5)] == [
        "17.9", "0.205", "1,280", "0", "\u22120.5",
    ]  # fmt: skip
    assert [wording.signed(v) for v in (0.214, -0.2, 0.001)] == ["+0.21", "\u22120.20", "0.00"]
    assert [wording.duration(s) for s in (6.36, 200, 7500)] == ["6.4 s", "3 min 20 s", "2 h 5 min"]
    assert [wording.thousands(v) for v in (0, 500, 450_000, 1.2e6)] == ["0", "500", "450k", "1.2M"]
    assert wording.listed(["a", "b", "c"]) == "a, b and c"
    assert wording.listed([]) == ""
    assert wording.metric_title("entropy/red_0") == "Entropy of red_0"
    assert wording.metric_title("something/else") == "something/else"


# --- curves


def series(values) -> Series:
    return Series(np.arange(1, len(values) + 1) * 100.0, np.asarray(values, np.float64))


def chart(values, **more) -> Chart:
    return Chart("t", "told", "unit", (Line("run", series(values)),), x_max=100 * len(values), **more)


def test_a_thinned_line_is_short_and_keeps_its_ends_and_spikes():
    values = np.sin(np.arange(5000) / 50)
    values[1234] = 40.0
    rows = thin(series(values))
    assert len(rows.values) <= POINTS
    assert (rows.values[0], rows.values[-1], rows.values.max()) == (values[0], values[-1], 40.0)
    assert (np.diff(rows.env_steps) > 0).all()
    short = series([1.0, 2.0])
    assert thin(short) is short


@pytest.mark.parametrize(("low", "high"), [(0, 471_040), (-0.4, 1.1), (0, 1e-4), (5, 5), (17.9, 83.2)])
def test_ticks_are_few_round_and_inside(low, high):
    found = ticks(low, high, 5)
    assert 1 <= len(found) <= 6
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)


def test_an_axis_shows_the_gate_and_the_end_but_not_one_wild_start():
    gate = Gate("m", ">=", 1.3)
    low, high = limits(chart([-500.0, *np.linspace(0, 1, 200)], gate=gate))
    assert -1 < low < 0
    assert high > 1.3


def test_an_axis_of_what_is_never_negative_begins_at_nought():
    low, _ = limits(chart([0.0, 0.5, 2.0]))
    assert -0.1 < low < 0
    assert limits(chart([3.0, 3.0]))[0] < 3 < limits(chart([3.0, 3.0]))[1]


def test_a_plot_holds_its_numbers_and_escapes_its_title():
    made = plot(Chart(EVIL, EVIL, EVIL, (Line(EVIL, series([1.0, 2.0])), Line("b", series([2.0, 3.0]))), x_max=200))
    assert EVIL not in made
    data = re.search(r'class="plot-data">(.*?)</script>', made)
    assert data is not None
    told = json.loads(data[1])
    assert (told["x"], told["rows"]) == ([100, 200], [[EVIL, [1.0, 2.0]], ["b", [2.0, 3.0]]])


def test_a_single_report_is_a_dot_and_no_error():
    made = plot(chart([0.5], gate=Gate("m", "<=", 0.5), held=(0, 100)))
    assert "<polyline" in made
    assert "nan" not in made
