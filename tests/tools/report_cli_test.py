"""sluice metrics and sluice report: output, refusals, and pages made from arbitrary files.

Where a Chromium is installed, pages are opened in it, without a network.
"""

import contextlib
import json
import re
import sys
import unittest

from chromium import Chromium
from sluice_program import Program

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&\u2028"
DATA = re.compile(r'<script type="application/json" id="sluice-data">(.*?)</script>', re.DOTALL)


def step(number, **more):
    return json.dumps({"step": number, "loss": 4 / number, "lr": 1e-3, "grad_norm": 1.5,
                       "loss_scale": 1.0, "skipped": False, "tokens_per_s": 1000.0,
                       "step_ms": 100.0, "forward_ms": 30.0, "backward_ms": 60.0, "update_ms": 9.0,
                       "update_exposed_ms": 5.0, "nvme_read_bytes": 10**9,
                       "nvme_write_bytes": 10**9, "h2d_bytes": 10**8, "d2h_bytes": 10**8,
                       "gpu_peak_bytes": 2**30, "host_pinned_bytes": 2**29,
                       "host_rss_bytes": 2**31, **more})


class Base(Program):
    def run_folder(self, name, lines, events=None, config=None):
        (self.path / name).mkdir(exist_ok=True)
        self.write(f"{name}/metrics.jsonl", "".join(line + "\n" for line in lines))
        self.write(f"{name}/config.json", config if config is not None else {"run": {"seed": 1}})
        if events is not None:
            self.write(f"{name}/events.jsonl", "".join(
                (one if isinstance(one, str) else json.dumps(one)) + "\n" for one in events))
        return name

    def report(self, *words):
        result = self.sluice("report", *words, "-o", "page.html", "--force")
        page = (self.path / "page.html").read_text(encoding="utf-8")
        return page, json.loads(DATA.search(page).group(1)), result


class Reports(Base):
    def test_documents_every_key(self):
        text = self.sluice("metrics", "--keys").stdout
        self.assertRegex(text, r"\n  step_ms +\[ms\] the whole step")
        keys = json.loads(self.sluice("metrics", "--keys", "--json").stdout)
        names = [key["name"] for key in keys["metrics"]["keys"]]
        self.assertEqual(names[:4], ["schema", "step", "tokens_seen", "unix_s"])
        self.assertIn("--keys", self.refused("metrics"))

    def test_refuses_what_is_no_run_and_what_it_would_replace(self):
        self.assertIn("there is no absent", self.refused("report", "absent", "-o", "p.html"))
        (self.path / "empty").mkdir()
        self.assertIn("not a run's folder", self.refused("report", "empty", "-o", "p.html"))
        self.run_folder("a", [step(1)])
        self.assertIn("--out", self.refused("report", "a"))
        self.write("p.html", "mine")
        self.assertIn("--force", self.refused("report", "a", "-o", "p.html"))
        self.assertEqual((self.path / "p.html").read_text(), "mine")
        self.refused("report", "a", "-o", "absent/p.html")
        self.refused("report", "a", "-o", "q.html", "--drive-tbw", "0")
        self.assertFalse((self.path / "q.html").exists())

    def test_takes_several_runs_and_metrics_alone_and_tells_them_apart(self):
        for name in ("x", "y"):
            (self.path / name).mkdir()
        self.run_folder("x/run", [step(1), step(2)])
        self.run_folder("y/run", [step(1)])
        _, data, _ = self.report("x/run", "y/run/", "x/run/metrics.jsonl", "--drive-tbw", "600")
        self.assertEqual([run["name"] for run in data["runs"]],
                         ["x/run", "y/run/", "metrics.jsonl"])
        self.assertEqual([run["lines"] for run in data["runs"]], [2, 1, 2])
        self.assertEqual(data["drive_tbw"], 600)
        self.assertEqual(data["runs"][0]["drives"]["write_bytes"], 2e9)

    def test_says_what_it_could_not_read(self):
        self.run_folder("a", [step(1), "{", step(3), '{"step": 4, "loss'], events=["x"])
        (self.path / "a/metrics.jsonl").write_text(
            (self.path / "a/metrics.jsonl").read_text().rstrip("\n"))
        _, data, result = self.report("a")
        self.assertEqual(len(data["runs"][0]["notices"]), 4)
        for words in ("1 line of the metrics cannot be read\n",
                      "1 place: first 2", "is incomplete",
                      "1 line of"):
            self.assertIn(words, result.stderr)

    def test_makes_a_hundred_thousand_steps_into_less_than_two_megabytes(self):
        lines = [step(number, loss=99.0 if number == 77_777 else 1 + number % 7 / 10)
                 for number in range(1, 100_001)]
        self.run_folder("a", lines)
        page, data, _ = self.report("a")
        self.assertLess(len(page), 2_000_000)
        loss = data["runs"][0]["series"]["columns"]["loss"]
        self.assertEqual(max(loss["hi"]), 99)
        self.assertEqual(min(loss["lo"]), 1)
        self.assertEqual(data["runs"][0]["lines"], 100_000)


def begin(number, **more):
    return {"event": "begin", "unix_s": 1.7e9 + number, "step": number, "schema": 1, "steps": 50,
            "plan": {"step_s": 0.09, "waves": 1, "forward_s": 0.03, "update_exposed_s": 0.004,
                     "tokens_per_s": 1100, "busy_s": {"compute": 0.08}, "bottleneck": "compute",
                     "nvme_write_bytes": 1e9},
            "tiers": {"gpu": {"bytes": 2**30, "budget_bytes": 2**31, "parts": {"slots": 2**29}}},
            "config": [{"path": "run.seed", "value": "1", "outcome": "given"}], **more}


@unittest.skipUnless(Chromium.program(), "no Chromium is installed")
class Pages(Base):
    @classmethod
    def setUpClass(cls):
        cls.ending = contextlib.ExitStack()
        cls.browser = cls.ending.enter_context(Chromium.open())

    @classmethod
    def tearDownClass(cls):
        cls.ending.close()

    def opened(self, **more):
        return self.browser.page((self.path / "page.html").as_uri(), **more)

    def drawn(self, page):
        """Chart -> number of points, for charts with more than a background on their canvas."""
        return page.value("""Object.fromEntries([...document.querySelectorAll(".chart")]
            .filter(box => !box.hidden).filter(box => {
              const canvas = box.querySelector("canvas");
              const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
              return new Set(new Uint32Array(data.buffer)).size > 20;
            }).map(box => [box.id.slice(6), Number(box.dataset.points)]))""")

    def test_show_sample_texts_the_newest_first_and_as_text(self):
        def samples(events):
            self.run_folder("a", [step(n, unix_s=1.7e9 + n) for n in range(1, 6)],
                            [begin(0), *events])
            self.report("a", "--force")
            page = self.opened()
            self.assertEqual(page.complaints, [])
            return page.value("""(() => {
                const heading = [...document.querySelectorAll("h2")].find(
                    it => it.textContent === "Sample texts");
                return heading.hidden ? null : [...heading.nextElementSibling.querySelectorAll(
                    "tbody tr")].map(row => [...row.cells].map(cell => cell.textContent));
            })()""")
        self.assertIsNone(samples([]))
        hostile = "<img src=x onerror=alert(1)></script>"
        self.assertEqual(samples([
            {"event": "sample", "unix_s": 1.7e9, "step": number, "prompt": "The", "tokens": 2,
             "text": f" {number}{hostile}", "ended": number == 4} for number in (2, 4)]),
            [["4", "The", f" 4{hostile} \N{END OF PROOF}"], ["2", "The", f" 2{hostile}"]])

    def test_draw_every_chart_light_and_dark_without_a_complaint(self):
        self.run_folder("a", [step(n, unix_s=1.7e9 + n, tokens_seen=100 * n,
                                   **({"val_loss": 3.0} if n % 10 == 0 else {}),
                                   **({"gpu_utilization_percent": 90.0 + n % 5,
                                       "gpu_power_watts": 600.0 + n,
                                       "gpu_throttled_percent": n % 2} if n > 1 else {}),
                                   loss_scale=2.0**(16 - n // 20)) for n in range(1, 51)],
                        [begin(0), begin(30), {"event": "end", "unix_s": 1.8e9, "step": 50,
                                               "how": "completed"}])
        self.report("a", "--drive-tbw", "1")
        for dark in (False, True):
            page = self.opened(dark=dark)
            charts = page.value("document.documentElement.dataset.charts").split()
            self.assertEqual(len(charts), 20, charts)
            drawn = self.drawn(page)
            self.assertEqual(set(drawn), set(charts))
            self.assertEqual(drawn["validation"], 5)
            self.assertEqual(drawn["loss"], 100)  # raw and smoothed
            self.assertEqual(drawn["gpu-throttled"], 49)
            text = page.value("document.body.innerText")
            self.assertRegex(text, r"GPU busy, median\s+92%\s+throttled some of the time")
            self.assertEqual(page.complaints, [])

    def test_zoom_all_charts_hide_runs_and_change_the_axis(self):
        for name in ("a", "b"):
            self.run_folder(name, [step(n, unix_s=1.7e9 + n) for n in range(1, 201)])
        self.report("a", "b")
        page = self.opened()
        left, top, width, height = page.value("""(() => {
          const it = document.querySelector("#chart-loss .u-over").getBoundingClientRect();
          return [it.left, it.top, it.width, it.height]; })()""")
        reset = "[...document.querySelectorAll('.bar button')].at(-2)"
        self.assertTrue(page.value(f"{reset}.disabled"))
        middle = top + height / 2
        page.mouse("mouseMoved", left + 0.25 * width, middle)
        page.wait_for("!document.querySelector('#chart-loss .tip').hidden")
        self.assertIn("step 5", page.value("document.querySelector('#chart-loss .tip').innerText"))
        page.mouse("mousePressed", left + 0.25 * width, middle, button="left", clickCount=1)
        for at in (0.4, 1.01):  # the second end is outside of the chart
            page.mouse("mouseMoved", left + at * width, middle, button="left", buttons=1)
        before = self.drawn(page)
        page.mouse("mouseReleased", left + 1.01 * width, middle, button="left", clickCount=1)
        page.wait_for(f"!{reset}.disabled")
        # Its bars show only the visible steps.
        page.wait_for("Number(document.querySelector('#chart-phases').dataset.points) !== "
                      f"{before['phases']}")
        page.value(f"{reset}.click()")
        page.wait_for(f"{reset}.disabled")
        page.value("document.querySelector('.chip').click()")
        self.assertEqual(self.drawn(page)["loss"], before["loss"] / 2)
        for number in range(4):
            page.value(f"document.querySelectorAll('.segments button')[{number}].click()")
            self.assertEqual(self.drawn(page)["loss"], before["loss"] / 2)
        self.assertEqual(page.complaints, [])

    def test_show_speed_beside_its_limit_and_what_would_help(self):
        self.run_folder("a", [step(n, tflops_per_s=120.0, tokens_per_s=1000.0)
                              for n in range(1, 6)],
                        [begin(0, ranks=2, machine={"gpu": "G", "product_flops_per_s": 2e14},
                               model={"flops_per_token": {"forward": 4e10, "backward": 8e10}},
                               what_if=[{"with": "8 GiB more GPU memory", "step_s": 0.075,
                                         "tokens_per_s_ratio": 1.2}])])
        self.report("a")
        page = self.opened()
        self.assertEqual(page.complaints, [])
        text = page.value("document.body.innerText")
        self.assertRegex(text, r"TFLOP/s, median\s+120\s+30% of large products")
        self.assertRegex(text, r"TFLOP/s, of large products\s+132\s+120\s+30%\s+0.909 ×")
        self.assertRegex(text, r"predicted effect of changes[\s\S]*8 GiB more GPU memory\s+75 ms"
                               r"\s+\+20%")

    def test_show_what_is_hostile_as_text_and_run_nothing(self):
        (self.path / "evil").mkdir()
        name = "evil/<img src=x onerror=alert(3)>"
        self.run_folder(name, [step(1), step(2, loss=None), '{"step": 3, "loss": NaN}',
                               json.dumps({"step": 4, HOSTILE: 1, "loss": 1e308}),
                               '{"step": 5, "loss": Infinity}'],
                        [begin(0, what_if=[{"with": HOSTILE, "step_s": 1,
                                            "tokens_per_s_ratio": 2}],
                               build=HOSTILE, machine={"cpu": HOSTILE, "gpu": HOSTILE},
                               model={"family": HOSTILE, "parameters": HOSTILE}),
                         {"event": "warning", "unix_s": 1, "step": 1, "text": HOSTILE},
                         {"event": "checkpoint", "unix_s": 1, "step": 1, "failed": HOSTILE},
                         {"event": "end", "unix_s": 1, "step": 1, "how": HOSTILE,
                          "reason": HOSTILE}],
                        {HOSTILE: HOSTILE, "run": {"dir": HOSTILE}})
        self.report(name)
        page = self.opened()
        self.assertEqual(page.complaints, [])
        self.assertEqual(page.value("document.images.length + document.scripts.length"), 2)
        self.assertIn("<img src=x", page.value("document.title"))
        self.assertIn("</script><script>alert(1)", page.value("document.body.innerText"))

    def test_stay_whole_whatever_the_types_of_what_they_are_given(self):
        odd = [None, 0, -1e308, "x", [], {}, [None], {"a": []}, True, "9" * 400]
        for number, value in enumerate(odd):
            events = [{**begin(0), key: value} for key in
                      ("plan", "tiers", "machine", "model", "config", "build", "steps", "ranks")]
            events += [begin(0, tiers={"gpu": value, "cpu": {"bytes": value, "parts": value}},
                             plan={"step_s": 1, "busy_s": value, "forward_s": value},
                             config=[value, {"path": value, "value": value}])]
            events += [begin(0, what_if=value), begin(
                0, what_if=[value, {"with": value, "step_s": 1, "tokens_per_s_ratio": 1},
                            {"with": "x", "step_s": value, "tokens_per_s_ratio": value}],
                machine={"product_flops_per_s": value}, ranks=value,
                model={"flops_per_token": value})]
            events += [{"event": kind, "unix_s": 1, "step": 1, "text": value, "bytes": value,
                        "stopped_s": value, "failed": value, "how": value}
                       for kind in ("checkpoint", "warning", "end")]
            self.run_folder(f"r{number}", [step(1), json.dumps({"step": 2, "loss": value}),
                                           step(7)], events, value if value else "{}")
        self.report(*(f"r{number}" for number in range(len(odd))))
        page = self.opened()
        self.assertEqual(page.complaints, [])
        self.assertGreater(self.drawn(page)["loss"], 0)
        self.assertNotIn("cannot be shown", page.value("document.body.innerText"))
        self.run_folder("none", [])
        self.report("none")
        page = self.opened()
        self.assertEqual(page.complaints, [])
        self.assertIn("no step", page.value("document.body.innerText"))

    def test_are_printed_light_and_whole(self):
        self.run_folder("a", [step(n) for n in range(1, 51)])
        self.report("a")
        page = self.opened(dark=True)
        page.pdf(self.path / "page.pdf")
        self.assertEqual(page.value("document.documentElement.dataset.dark"), "1")
        self.assertEqual(page.complaints, [])
        self.assertEqual((self.path / "page.pdf").read_bytes()[:5], b"%PDF-")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
