"""The pure parts of the benchmarks: what is measured must be told right, without measuring anything."""

import json
import os
import sys

import pytest

from benchmarks import control, measure, results, tables, training, world
from benchmarks.measure import BenchmarkError, Peers
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

    def test_spread_is_median_and_range(self):
        assert measure.spread([3.0, 1.0, 8.0]) == (3.0, 1.0, 8.0, 3)

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

    def test_missing_overhead_is_none(self):
        assert measure.overhead_share([row(1, 1.0), row(2, 2.0)], 1) is None


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

    def test_every_number_of_agents_makes_game(self):
        assert [world.spec_of(agents, 7).num_agents for agents in world.TEAMS] == list(world.TEAMS)


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

    def test_every_case_is_named_once(self):
        assert len(fingerprints.cases()) == len(fingerprints.cases("quick")) + len(fingerprints.cases("more"))
