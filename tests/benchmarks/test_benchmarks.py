"""The pure parts of the benchmarks: what is measured must be told right, without measuring anything."""

import json
import os
import sys

import pytest
import torch

from benchmarks import control, device, measure, results, tables, training
from benchmarks.measure import BenchmarkError, Peers
from benchmarks.soak import faults, kind, summary
from multigrid_rl.config.compose import compose
from tools import fingerprints


def row(iteration, seconds, **more):
    return {"env_steps": 100 * iteration, "seconds": seconds, **more}


def run_of(rows):
    return measure.Run(rows, {}, 1.0, measure.Peak(0.0, None, {}))


class TestRounds:
    def test_every_second_round_is_reversed(self):
        seen = []
        results = measure.alternate({name: lambda name=name: seen.append(name) or len(seen) for name in "abc"}, 3)
        assert seen == ["a", "b", "c", "c", "b", "a", "a", "b", "c"]
        assert results == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}

    def test_ratios_are_per_round(self):
        assert measure.ratios([10.0, 4.0], [5.0, 4.0]) == [2.0, 1.0]


class TestRows:
    def test_speed_excludes_warm_up(self):
        rows = [row(1, 50.0), row(2, 51.0), row(3, 53.0)]
        assert run_of(rows).speed(1) == 200 / 3

    def test_rejects_speed_without_iterations_after_warm_up(self):
        with pytest.raises(BenchmarkError, match="iterations: expected more than the warm-up's 2, got 2"):
            run_of([row(1, 1.0), row(2, 2.0)]).speed(2)

    def test_timing_uses_available_columns(self):
        rows = [
            row(1, 10.0, **{"timing/learn_s": 9.0}),
            row(2, 11.0, **{"timing/learn_s": 0.5, "timing/new_s": 0.1, "timing/overhead_share": 0.2}),
            row(3, 12.0, **{"timing/learn_s": 0.7, "timing/new_s": None, "timing/overhead_share": 0.4}),
        ]
        parts = measure.timing_parts(rows, 1)
        assert parts["learn"] == (pytest.approx(0.6), pytest.approx(0.6))
        assert parts["new"] == (0.1, 0.05)
        assert set(parts) == {"learn", "new"}
        assert measure.overhead_share(rows, 1) == pytest.approx(0.3)


class TestProcesses:
    def test_failing_run_is_reported_with_last_output(self):
        program = [sys.executable, "-c", "import sys; print('x'); sys.exit('no such thing')"]
        with pytest.raises(BenchmarkError, match=r"status 1: no such thing$"):
            measure.run_process(program)

    def test_hanging_run_is_ended(self, tmp_path):
        self.stuck(tmp_path, "pass")

    def test_run_ignoring_sigterm_is_killed(self, tmp_path, monkeypatch):
        monkeypatch.setattr(measure, "GRACE_S", 0.1)
        self.stuck(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)")

    def stuck(self, folder, first):
        note = folder / "pid"
        tell = f"pathlib.Path({str(note)!r}).write_text(str(os.getpid()))"
        code = f"import os, pathlib, signal, time; {first}; {tell}; time.sleep(60)"
        with pytest.raises(BenchmarkError, match="took longer than 2 s"):
            measure.run_process([sys.executable, "-c", code], limit=2.0)
        with pytest.raises(ProcessLookupError):
            os.kill(int(note.read_text()), 0)

    def test_missing_peers_are_reported_with_remedy(self, tmp_path):
        with pytest.raises(BenchmarkError, match="run make bench-setup, or leave it out: --skip-peers"):
            Peers(tmp_path)

    def test_command_reports_missing_peers_and_fails(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(sys, "argv", ["training", "--quick", "--only", "sb3", "--peers", str(tmp_path)])
        with pytest.raises(SystemExit, match=f"^benchmarks: no stable_baselines3 in {tmp_path}: run make bench-setup"):
            training.main()
        assert capsys.readouterr().out == ""

    def test_rejects_curves_of_one_seed(self, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["results", "--only", "1v1", "2v2-dtde", "--seeds", "0", "0"])
        monkeypatch.setattr(results, "results_of", lambda *_: pytest.fail("it trained"))
        with pytest.raises(SystemExit, match=r"^--seeds: expected at least 2 different seeds for the curves of 1v1,"):
            results.main()


class TestMemory:
    def test_descendants_are_exactly_the_process_tree(self):
        assert measure.descendants({2: 1, 3: 2, 4: 3, 5: 1, 6: 9}, 2) == [2, 3, 4]

    def test_process_name_may_contain_brackets_and_blanks(self):
        stat = "17 (a ) (b) S 4 17 17 0 -1"
        assert measure.fields_of(stat) == ("a ) (b", ["S", "4", "17", "17", "0", "-1"])

    def test_sizes_match_whole_key_and_gone_process_counts_zero(self):
        assert measure.text_of(2**31 - 1, "stat") == ""
        assert measure.kib_of("", "Pss") == 0
        assert measure.kib_of("Pss_Anon:  7 kB\nPss:   5 kB\n", "Pss") == 5

    def test_sees_own_process(self):
        with measure.MemoryWatch(os.getpid(), whole_tree=True) as watch:
            pass
        assert watch.peak.driver_mib > 1
        assert watch.peak.tree_mib == pytest.approx(sum(watch.peak.parts_mib.values()))
        assert watch.peak.parts_mib["driver"] > 1


class TestMachine:
    def test_busy_ticks_exclude_idle_and_waiting(self):
        assert tables.busy_ticks("cpu  1 2 4 100 200 8 16 32 0 0\ncpu0 1 1\n") == 63


class TestTables:
    def test_numbers_have_three_digits_and_thousands_separators(self):
        values = (0, 0.01234, 1.234, 99.9, 123.4, 1234567.0)
        assert [tables.figure(value) for value in values] == ["0", "0.012", "1.23", "99.90", "123", "1,234,567"]

    def test_table_alignment_and_dashes_for_missing_values(self):
        assert tables.table(["a", "b"], [["x", 1000.0], ["y", None]]) == [
            "| a | b |", "|---|--:|", "| x | 1,000 |", "| y | - |",
        ]  # fmt: skip

    def test_report_writes_both_files_and_ends_with_json(self, tmp_path, capsys):
        printed = {
            "cpu": "a processor", "cores": 2, "memory_gib": 4.0, "system": "Linux", "architecture": "x86_64",
            "versions": {"torch": "2"}, "commit": "abc", "load_average_at_start": 0.1,
            "cores_used_by_others_at_start": 0.0, "busy": False,
        }  # fmt: skip
        made = tables.Report("Speed", printed, {"env_steps_per_s": 7, "ratio_to_sb3": None})
        made.section("One", ["text"], {"rounds": [1.0]})
        made.write(tmp_path / "new" / "bench-x")
        assert json.loads(capsys.readouterr().out.splitlines()[-1]) == made.result
        data = json.loads((tmp_path / "new" / "bench-x.json").read_text())
        assert (data["machine"], data["result"], data["sections"]) == (printed, made.result, made.data)
        page = (tmp_path / "new" / "bench-x.md").read_text()
        for part in ("# Speed", "a processor, 2 cores", "torch 2", "## One", '"ratio_to_sb3": null'):
            assert part in page


class TestSections:
    def test_ratio_is_null_without_peers(self, monkeypatch, capsys):
        monkeypatch.setattr(sys, "argv", ["training", "--quick", "--only", "sb3", "--skip-peers"])
        monkeypatch.setattr(training, "describe", lambda: {})
        training.main()
        data = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert data == dict.fromkeys(training.KEYS)

    def test_failing_section_keeps_earlier_sections(self, monkeypatch, tmp_path, capsys):
        def works(its, options):
            its.result["env_steps_per_s"] = 5
            its.section("Works", ["done"], {"value": 5})

        def fails(its, options):
            raise BenchmarkError("no luck")

        monkeypatch.setattr(training, "SECTIONS", {"speed": works, "held": fails})
        out = tmp_path / "page"
        monkeypatch.setattr(sys, "argv", ["training", "--only", "speed", "held", "--out", str(out)])
        monkeypatch.setattr(training, "describe", lambda: {})
        monkeypatch.setattr(training.Report, "markdown", lambda self, command: "\n".join(self.lines))
        with pytest.raises(SystemExit, match=r"^benchmarks: no luck$"):
            training.main()
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["env_steps_per_s"] == 5
        assert json.loads(out.with_suffix(".json").read_text())["sections"]["Works"] == {"value": 5}


def test_stable_baselines_gets_halfcheetah_recipe():
    train = compose(control.ALIKE).train
    batch = train.num_envs * train.num_steps
    assert (batch, train.minibatch_size, train.epochs) == (control.BATCH, control.MINIBATCH, control.EPOCHS)


class TestFingerprints:
    def test_leaves_out_what_the_clock_and_the_checkout_decide(self):
        row = {"env_steps": 4, "seconds": 1.5, "timing/learn_s": 0.1, "env_steps_per_s": 2.0, "entropy/red_0": None}
        rest = {"env_steps": 4, "entropy/red_0": None}
        assert dict(fingerprints.flat(row)) == rest
        assert dict(fingerprints.flat({"commit": "a", "first": [{"seconds": 1, "value": 2}], "none": []})) == {
            "first/0/value": 2,
            "none": [],
        }

    def test_names_first_row_and_key_that_differ(self):
        rows = [{"a": 1, "b": 0.5}, {"a": 2, "b": None}]
        assert fingerprints.difference(rows, [dict(row) for row in rows]) is None
        assert fingerprints.difference(rows, [rows[0], {"a": 2, "b": 1}]) == "row 2, b: null before, 1 after"
        assert fingerprints.difference(rows, [rows[0], {"a": 2}]) == "row 2, b: null before, nothing after"
        assert fingerprints.difference(rows, rows[:1]) == "2 rows before, 1 after"

    def test_saved_case_is_compared_with_its_rows(self, tmp_path):
        file, rows = tmp_path / "new" / "before.json", [{"a": 1}, {"a": 2}]
        found = {"rows": 2, "sha256": fingerprints.digest(rows), "weights": {"red_0": "x"}}
        fingerprints.keep("one", found, rows, file)
        assert fingerprints.changed("one", found, rows, file) == ""
        assert fingerprints.changed("two", found, rows, file) == f"not in {file}"
        other = [{"a": 1}, {"a": 3}]
        found_other = {**found, "sha256": fingerprints.digest(other)}
        assert fingerprints.changed("one", found_other, other, file) == "row 2, a: 2 before, 3 after"
        assert "weights: " in fingerprints.changed("one", {**found, "weights": {"red_0": "y"}}, rows, file)


def broken(limit):
    raise BenchmarkError(f"status 2 of {limit:.0f}")


def test_what_is_not_measured_is_named():
    budget = device.Budget(100)
    assert budget.measured("one", lambda limit: limit > 90)
    assert budget.measured("two", broken) is None
    budget.begin(share=0.05)
    assert budget.measured("three", lambda limit: limit) is None
    assert budget.failed[0].startswith("two: status 2 of")
    assert budget.left_out == ["three"]


def test_an_update_is_the_same_by_every_path_and_a_difference_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "ROWS", 256)
    monkeypatch.setattr(device, "WIDTHS", (16,))
    report, budget = device.Report("x", {}), device.Budget(100)
    device.learner(report, budget, "cpu")
    (row,) = next(iter(report.data.values()))
    assert row["equal"]
    assert list(row) == ["units", "default, ms", "torch, cpu, ms", "largest difference", "equal"]
    assert budget.failed == []
    numbers = iter((0.0, 0.1))
    monkeypatch.setattr(device, "updated", lambda *_: (torch.full((3,), next(numbers)), 1.0))
    device.learner(report, budget, "cpu")
    assert budget.failed == ["width 16: weights differ by 0.1"]


def test_a_report_is_written_though_nothing_was_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(device, "describe", lambda: {"cores": 2})
    monkeypatch.setattr(device.Report, "markdown", lambda *_: "")
    monkeypatch.setattr(sys, "argv", ["device", "--device", "cpu", "--budget", "1", "--out", str(tmp_path / "found")])
    with pytest.raises(SystemExit, match="0"):
        device.main()
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told == json.loads((tmp_path / "found.json").read_text())["result"]
    assert {"kernels", "width 2048, default", "16384 games", "run of width 64, cpu"} <= set(told["left_out"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU")
def test_without_a_gpu_one_line_says_so(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["device"])
    with pytest.raises(SystemExit, match="--device: expected cpu, as torch sees no GPU here"):
        device.main()


KILLS = [20.0, 40.0, 60.0]
#: Seconds in which only one of two runners was there.
AWAY = [(20.0, 28.0), (40.0, 47.0)]


def recorded(speed_after: float = 1000.0, seconds: int = 59):
    """Rows ten times a second: 1000 steps a second with both runners, 500 with one."""
    rows, steps = [], 0.0
    for tick in range(seconds * 10):
        at = tick / 10
        alone = any(begin <= at < end for begin, end in AWAY)
        steps += 0.1 * (500.0 if alone else speed_after if at >= 28 else 1000.0)
        rows.append((at, {"env_steps": steps, "env_runners": 1 if alone else 2, "env_runner_restarts": 2}))
    memory = [
        (float(at), 10 * 2**20 + at * 2**20 // 60, {"raylet": 30 * 2**20, "agent.py": at * 2**20 // 30}, at // 40)
        for at in range(0, seconds, 5)
    ]
    return rows, memory


def test_reports_runner_downtime_and_surrounding_speed():
    rows, memory = recorded()
    found = summary(rows, KILLS[:2], memory)
    assert (found["kills"], found["recovered"]) == (2, 2)
    assert (found["away_s"]["min"], found["away_s"]["max"]) == pytest.approx((7.0, 8.0), abs=0.11)
    assert found["speed_after_over_before"]["min"] == pytest.approx(1.0, abs=0.01)
    assert found["driver_mib_a_minute"] == pytest.approx(1.0, abs=0.05)
    assert found["mib_a_minute_by_process"] == {"agent.py": 2.0, "raylet": 0.0}
    assert (found["zombies_most"], found["zombies_at_end"]) == (1, 1)


def test_downtime_is_excluded_from_speed_before_next_kill():
    rows, memory = recorded()
    found = summary(rows, [20.0, 32.0, 40.0], memory)  # 4 seconds after the first return
    assert found["speed_after_over_before"]["max"] == pytest.approx(1.0, abs=0.01)


def test_classifies_processes():
    assert kind("ray::BatchedEnvRunner.sample") == "ray::BatchedEnvRunner"
    assert kind("/some/where/raylet --node_manager_port=0") == "raylet"
    assert kind("python -u /some/where/log_monitor.py --session-dir=x") == "log_monitor.py"


def test_names_faults():
    sound = {"exit_code": 130, "kills": 9, "recovered": 8, "zombies_at_end": 0, "left_behind": []}
    assert faults(sound) == []
    worst = {"exit_code": 1, "kills": 9, "recovered": 5, "zombies_at_end": 2, "left_behind": ["ray::IDLE"]}
    assert faults(worst) == [
        "the run ended with status 1",
        "3 killed runners did not come back",
        "2 zombies",
        "left behind: ['ray::IDLE']",
    ]
