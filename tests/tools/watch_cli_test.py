"""sluice watch: what a terminal, a pipe, a browser and Prometheus show of runs, and how it handles
damaged files and hostile requests.

The terminal is a pty, with the screen of pyte. The test writes runs itself, and holds their lock;
with the engine there is a real one. The browser is a Chromium, if one is installed.
"""

import contextlib
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import threading
import time
import unittest

from chromium import Chromium
from sluice_program import HAS_ENGINE, SLUICE, Program, Training
from terminal_screen import TerminalScreen, pyte
from watched_runs import WAIT_S, MadeUpRun, Server

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    text_string_to_metric_families = None

HOSTILE = "x\x1b[2J\x1b]0;owned\x07</script><script>alert(1)</script>\r\n\u202e\x9b31m"
COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?[34][0-8](?:;[0-9;]*)?m")
SHOW_CURSOR = b"\x1b[?25h"


class Base(Program):
    def made_up(self, name="demo", **options):
        run = MadeUpRun(self.path / name, **options)
        self.addCleanup(run.release)
        return run

    def on_terminal(self, *words, **options):
        return TerminalScreen([SLUICE, "watch", "--every", "0.2", *words], **options)


@unittest.skipUnless(pyte, "pyte is not there: tools/setup --for=test")
class Watch(Base):
    def test_waits_for_a_run_and_refuses_to(self):
        self.assertIn("absent has no run", self.refused("watch", "absent", "--no-wait"))
        self.write("file", "x")
        self.assertIn("not a run's folder", self.refused("watch", "file"))
        with self.on_terminal(self.path / "demo") as screen:
            screen.wait_for("demo  waiting", "there is no run here yet")
            run = self.made_up()
            screen.wait_for("demo  starting", "gpt2, 1.50G parameters | 2 ranks | NVIDIA H100")
            run.train(3)
            screen.wait_for("demo  training  step 3/50")
            screen.press("q")
            self.assertEqual(screen.end(), 0)

    def test_shows_start_middle_end_and_crash_on_a_small_and_a_large_terminal(self):
        run = self.made_up()
        with self.on_terminal(run.folder, rows=24, columns=80) as small, \
             self.on_terminal(run.folder, rows=60, columns=200) as large:
            for screen in (small, large):
                screen.wait_for("demo  starting", "step 0/50")
            run.train(8, 0.02)
            for screen in (small, large):
                text = screen.wait_for("demo  training  step 8/50 (16%)", "left ")
                for words in ("loss 0.5", "tokens/s 1.01k", "limited by  compute 70%, plan NVMe read",
                              "25%, 25 ms", "up 1.00 GB/s, down 100 MB/s", "4.00 GiB of 8.00 GiB", "16.0 GiB of 64.0 GiB", "R 1.00 GB/s, W 500",
                              "planned 1.10k", "planned 90 ms", "began", "q quit"):
                    self.assertIn(words, text)
                self.assertRegex(text, "[\u2801-\u28ff]{5}")  # a curve
            self.assertIn("gradient norm 1.5", large.text)
            self.assertNotIn("GPU busy", small.text)
            run.train(2, val_loss=0.55, gpu_utilization_percent=87, gpu_power_watts=512)
            run.event("checkpoint", bytes=2**20, stopped_s=0.1, took_s=0.5)
            run.event("warning", text="the drive is slow")
            for screen in (small, large):
                text = screen.wait_for("validation 0.55", "checkpoint  step 10 at", "step 10 the drive is slow")
                self.assertRegex(text, "GPU busy .* 87%, 512")
                self.assertIn("warnings    1", text)
            run.event("end", how="completed")
            run.release()
            for screen in (small, large):
                self.assertNotIn("left ", screen.wait_for("demo  completed"))
            run.hold()
            run.event("begin", steps=90)
            run.train(2)
            for screen in (small, large):
                screen.wait_for("demo  training  step 12/90")
            run.release()  # like a kill
            for screen in (small, large):
                screen.wait_for("demo  crashed", "no process is training here")

    def test_obeys_its_keys_and_the_terminals_size(self):
        one, two = self.made_up("one"), self.made_up("two")
        one.train(40)
        two.train(7)
        with self.on_terminal(one.folder, two.folder, rows=24, columns=80) as screen:
            screen.wait_for("one  ", "step 40/50", "n run 1/2")
            screen.press("n")
            screen.wait_for("two  ", "step 7/50", "n run 2/2")
            screen.press("n?")
            screen.wait_for("one  ", "pause or continue the display")
            screen.press("?2")
            screen.wait_for("learning rate", "validation loss", "nothing yet")
            screen.press("3")
            screen.wait_for("step time 100 ms", "NVMe read busy 89% of the step")
            screen.press("\t")
            screen.wait_for("written to drives per step 50.0 MB", "GPU memory, peak")
            screen.press("5")
            screen.wait_for("step 0 began", "Tab events")
            screen.press("1+")
            screen.wait_for("last 1/2", "tokens/s")
            screen.press("l")
            screen.wait_for("l log")
            screen.press("p")
            screen.wait_for("[paused]")
            one.train(1)
            screen.read(1)
            self.assertIn("step 40/50", screen.text)
            screen.press("p")
            screen.wait_for("step 41/50")
            for rows, columns in ((10, 40), (3, 20), (3, 10), (10, 3), (1, 5), (50, 150), (24, 80)):
                screen.resize(rows, columns)
                screen.read(0.5)
            screen.wait_for("one  ", "limited by", "q quit")
            screen.press("\x1b[A\x1b[B\x1bOA\xff\x00\x1b")  # arrows, and other bytes
            screen.press("q")
            self.assertEqual(screen.end(), 0)

    def test_restores_the_terminal_however_it_ends(self):
        run = self.made_up()
        run.train(3)
        ends = {signal.SIGINT: 130, signal.SIGTERM: 130, signal.SIGHUP: 130, signal.SIGQUIT: -signal.SIGQUIT,
                signal.SIGABRT: -signal.SIGABRT, signal.SIGSEGV: -signal.SIGSEGV, "q": 0, "\x03": 130}
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        for how, code in ends.items():
            with self.subTest(how), self.on_terminal(run.folder) as screen:
                before = screen.flags()
                screen.wait_for("limited by")
                self.assertNotEqual(screen.flags(), before)
                if isinstance(how, str):
                    screen.press(how)
                else:
                    screen.send(how)
                self.assertEqual(screen.end(), code)
                self.assertEqual(screen.flags(), before)
                self.assertGreater(screen.raw.rfind(SHOW_CURSOR), screen.raw.rfind(b"\x1b[?25l"))

    def test_stops_and_goes_on_in_a_shell(self):
        run = self.made_up()
        run.train(3)
        with TerminalScreen(["bash", "--norc", "-i"], TERM="xterm-256color", PS1="shell: ") as screen:
            screen.wait_for("shell:")
            before = screen.flags()
            screen.press(f"{SLUICE} watch --every 0.2 {run.folder}\n")
            screen.wait_for("limited by")
            screen.press("\x1a")
            screen.wait_for("Stopped")
            self.assertEqual(screen.flags()[3], before[3])
            screen.press("fg\n")
            run.train(1)
            screen.wait_for("step 4/50")
            screen.press("q")
            screen.read(0.5)
            screen.press("exit\n")
            self.assertEqual(screen.end(), 0)

    def test_sends_little_and_no_colours_where_none_are_wanted(self):
        run = self.made_up(steps=1000)
        run.train(300)
        for rows, columns, most in ((24, 80, 1500), (60, 200, 5000)):
            with self.on_terminal(run.folder, rows=rows, columns=columns, NO_COLOR="1") as plain, \
                 self.on_terminal(run.folder, rows=rows, columns=columns, NO_COLOR=None) as screen:
                screen.wait_for("limited by")
                plain.wait_for("limited by")
                before = screen.bytes
                for _ in range(10):
                    run.train(3)
                    screen.read(0.25)
                self.assertIn(f"step {run.step}/1000", screen.wait_for(f"step {run.step}/1000"))
                self.assertLess((screen.bytes - before) / 10, most)
                self.assertIsNotNone(COLOUR.search(screen.raw))
                plain.wait_for(f"step {run.step}/1000")
                self.assertIsNone(COLOUR.search(plain.raw))

    def test_prints_lines_where_there_is_no_terminal_or_a_dumb_one(self):
        run = self.made_up()
        run.train(3)
        piped = subprocess.Popen([SLUICE, "watch", str(run.folder), "--every", "0.2"], text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.addCleanup(piped.stdout.close)
        self.assertRegex(piped.stdout.readline(),
                         r"\Ademo: training, step 3 of 50, loss 1\.333, 1\.00k tokens/s")
        for terminal in ("dumb", "no-such-terminal"):
            with self.on_terminal(run.folder, columns=200, TERM=terminal) as screen:
                screen.wait_for("a line every few seconds", "demo: training, step 3 of 50")
                self.assertNotIn(b"\x1b", screen.raw)
        with self.on_terminal(run.folder, "--plain", columns=200) as screen:
            screen.wait_for("demo: training, step 3 of 50")
        with self.on_terminal(run.folder, LC_ALL="C") as screen:
            screen.wait_for("limited by  compute", "*")
            self.assertTrue(screen.raw.isascii())
        run.train(2)
        self.assertIn("step 5 of 50", piped.stdout.readline())
        run.event("end", how="failed", reason="disk\x1b[2J full")
        run.release()
        self.assertIn("demo: failed, step 5 of 50", last := piped.stdout.read())
        self.assertIn(": disk?[2J full\n", last)
        self.assertEqual(piped.wait(WAIT_S), 1)
        closed = subprocess.Popen([SLUICE, "watch", str(self.made_up("b").folder), "--every", "0.1"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        closed.stdout.close()
        self.assertEqual(closed.wait(WAIT_S), 0)

    def test_shows_hostile_files_and_obeys_none(self):
        name = HOSTILE.replace("/", "|")[:120]
        run = self.made_up(name)
        run.append("metrics.jsonl", '{"step":1,"loss":NaN}\n{"step":2,"loss":null}\n' + "[" * 99_999 + "\n")
        run.step = 2
        run.event("warning", text=HOSTILE)
        run.append("events.jsonl", '{"event":"begin","step":1e9,"unix_s":-1,"tiers":[],"plan":7}\n{"event":"war')
        with self.on_terminal(run.folder, rows=24, columns=100) as screen:
            screen.wait_for("x?[2J?]0;owned?", "step 2")
            run.train(5, loss=1e308, tokens_per_s=-1e308, gpu_peak_bytes=2**60)
            run.append("metrics.jsonl", "\x00" * 5000 + "\n")
            run.append("metrics.jsonl", '{"step": 3, "loss": 0.1}\n{"step": 9, "lo')  # torn
            screen.wait_for("step 3/50")
            screen.press("5")
            screen.wait_for("as if two programs had written")
            self.assertNotIn(b"\x1b]0", screen.raw)
            self.assertNotIn("\u202e".encode(), screen.raw)
            (run.folder / "metrics.jsonl").write_text('{"step": 1, "loss": 9}\n', encoding="utf-8")
            screen.press("1")
            screen.wait_for("step 1/50", "loss 9")
            os.rename(run.folder / "metrics.jsonl", run.folder / "metrics.jsonl.1")
            screen.read(0.5)
            run.step = 1
            run.train(1, loss=8)
            screen.wait_for("step 2/50", "loss 8")
            screen.press("q")
            self.assertEqual(screen.end(), 0)


class WatchPages(Base):
    def test_sends_what_is_new_and_says_how_the_run_fares(self):
        run = self.made_up()
        run.train(21)
        with Server(run.folder) as server:
            status, page, headers = server.get("/")
            self.assertEqual(status, 200)
            self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
            for header in ("X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy"):
                self.assertIn(header, headers)
            self.assertNotRegex(page, r"(?i)(src|href)\s*=\s*[\"']?https?:")
            first = server.data()["runs"][0]
            self.assertEqual(first["new"]["series"]["last"], list(range(1, 22)))
            self.assertEqual(first["live"]["kind"], "training")
            run.train(2)
            deadline = time.monotonic() + WAIT_S
            while (then := server.data(first["at"])["runs"][0])["new"] is None and time.monotonic() < deadline:
                time.sleep(0.1)
            self.assertIn(22, then["new"]["series"]["last"])
            self.assertLessEqual(len(then["new"]["series"]["last"]), 3)
            self.assertNotIn("config", then["new"])
            self.assertLess(len(json.dumps(then)), len(json.dumps(first)) / 2)
            self.assertEqual(server.get("/", "HEAD")[:2], (200, ""))
            busy = self.refused("watch", run.folder, "--web", f"127.0.0.1:{server.port}")
            self.assertIn("uses this port", busy)
        self.assertEqual(server.process.returncode, 0)

    @unittest.skipUnless(text_string_to_metric_families, "prometheus-client is not there: tools/setup --for=test")
    def test_is_scraped_by_prometheus(self):
        run, other = self.made_up('a"\\\n{b}'), self.made_up("b")
        run.train(3, gpu_utilization_percent=75)
        other.train(1, loss=None)
        run.event("checkpoint", bytes=1, took_s=1)
        with Server(run.folder, other.folder) as server:
            status, text, headers = server.get("/metrics")
            self.assertEqual((status, headers["Content-Type"].split(";")[0]), (200, "text/plain"))
            families = {one.name: one for one in text_string_to_metric_families(text)}
            names = [one.name for one in text_string_to_metric_families(text)]
            self.assertEqual(len(names), len(set(names)))
            value = {(sample.name, sample.labels["run"], sample.labels.get("state") or sample.labels.get("tier")):
                     sample.value for one in families.values() for sample in one.samples}
            for one in families.values():
                self.assertTrue(one.documentation)
                self.assertIn(one.type, ("gauge", "counter"))
                for sample in one.samples:
                    self.assertRegex(sample.name, r"\Asluice_[a-z0-9_]+\Z")
                    self.assertNotRegex(sample.name, r"_(ms|gib|kb)\b")
            name = 'a"\\?{b}'
            self.assertEqual(value["sluice_step_seconds", name, None], 0.1)
            self.assertNotIn("sluice_tflops_per_s", text)
            self.assertEqual(value["sluice_nvme_read_bytes_total", name, None], 3e8)
            self.assertEqual(value["sluice_tokens_seen_total", name, None], 300)
            self.assertEqual(value["sluice_gpu_utilization_ratio", name, None], 0.75)
            self.assertNotIn(("sluice_gpu_utilization_ratio", "b", None), value)
            self.assertEqual(value["sluice_state", name, "training"], 1)
            self.assertEqual(value["sluice_tier_budget_bytes", name, "gpu"], 2**33)
            self.assertEqual(value["sluice_checkpoints_total", name, None], 1)
            self.assertNotEqual(value["sluice_loss_nats", "b", None], value["sluice_loss_nats", "b", None])  # NaN
            for key in json.loads(self.sluice("metrics", "--keys", "--json").stdout)["metrics"]["keys"]:
                if key["name"] == "update_ms":
                    self.assertEqual(families["sluice_update_seconds"].documentation, key["meaning"])

    def test_asks_for_a_token_anywhere_but_here(self):
        run = self.made_up()
        run.train(1)
        self.assertIn("--token", self.refused("watch", run.folder, "--web", "0.0.0.0:0", "--token", "short"))
        self.assertIn("not an address", self.refused("watch", run.folder, "--web", "8080"))
        self.assertIn("not an address", self.refused("watch", run.folder, "--web", "no.invalid:0"))
        self.refused("watch", run.folder, "--web", "192.0.2.1:0")
        self.assertIn("--web", self.refused("watch", run.folder, "--token", "t" * 20))
        token = "t" * 20
        for environment in ({}, {"SLUICE_WATCH_TOKEN": token}):
            with Server(run.folder, address="0.0.0.0:0", **environment) as server:
                made = re.search(r"\?token=(\S+)", server.url).group(1)
                self.assertRegex(made, r"\A[0-9a-f]{32}\Z" if not environment else token)
                for path in ("/", "/data", "/metrics", "/?token=" + "0" * 32):
                    self.assertEqual(server.get(path)[0], 401)
                self.assertEqual(server.get("/metrics", Authorization="Bearer " + made)[0], 200)
                status, _, headers = server.get("/?token=" + made)
                self.assertEqual((status, headers["Location"]), (303, "/"))
                self.assertEqual(server.get("/data", Cookie=headers["Set-Cookie"].split(";")[0])[0], 200)
        with Server(run.folder, SLUICE_WATCH_TOKEN=token) as server:
            self.assertEqual(server.get("/data")[0], 401)
        with Server(run.folder) as server:
            self.assertEqual(server.get("/data", Host="evil.example")[0], 421)
            self.assertEqual(server.get("/data", Host=f"localhost:{server.port}")[0], 200)

    def test_survives_visitors_of_any_kind(self):
        run = self.made_up()
        run.train(5)
        (self.path / "secret").write_text("swordfish", encoding="ascii")
        host = b"Host: localhost\r\n"
        with Server(run.folder) as server:
            for path in ("/../secret", "/..%2fsecret", "/%2e%2e/secret", "/./metrics.jsonl", "/lock", "//etc/passwd",
                         "/data/../../secret", "/" + "a" * 8000):
                status, body, _ = server.get(path)
                self.assertIn(status, (400, 404, 414, 431), path)
                self.assertNotIn("swordfish", body)
            for request in (b"", b"\r\n", b"GET /%00/../secret HTTP/1.1\r\n" + host + b"\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00" * 99,
                            b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
                            b"POST /data HTTP/1.1\r\n" + host + b"Content-Length: 99999999999\r\n\r\n" + b"x" * 99999,
                            b"GET /data HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
                            b"GET / HTTP/1.1\r\n" + host + b"X: " + b"y" * 10**6 + b"\r\n\r\n",
                            b"GET / HTTP/1.1\r\n" + host + b"A: b\r\n" * 10**5 + b"\r\n",
                            b"GET /data?at=" + b"1.1," * 3000 + b" HTTP/1.1\r\n" + host + b"\r\n"):
                self.assertNotIn(b"swordfish", server.raw(request))
            draw = random.Random(seed := int.from_bytes(os.urandom(4), "big"))
            good = b"GET /data?at=1.2.3 HTTP/1.1\r\nHost: localhost\r\nCookie: a=b\r\nConnection: close\r\n\r\n"
            for _ in range(150):
                request = bytearray(good)
                for _ in range(draw.randrange(1, 6)):
                    at = draw.randrange(len(request))
                    request[at:at + draw.randrange(3)] = bytes(draw.choices(range(256), k=draw.randrange(3)))
                server.raw(bytes(request))
            self.assertEqual(server.get("/data")[0], 200, f"seed {seed}")
            # More slow clients than it accepts at a time do not block others for long, and are
            # disconnected.
            slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(150)]
            for one in slow:
                one.sendall(b"GET / HTTP/1.1\r\nX: ")
            self.assertEqual(server.get("/data")[0], 200)
            slow[0].settimeout(WAIT_S)
            self.assertEqual(slow[0].recv(1), b"")
            for one in slow:
                one.close()
            self.assertIsNone(server.process.poll())

    def test_costs_a_run_next_to_nothing_under_twenty_readers(self):
        """Measures the server's own CPU time, with ten lines per second: the run's process is not
        involved, and noise of the machine counts less than in the run's speed."""
        run = self.made_up(steps=5000)
        run.train(2000)
        with Server(run.folder) as server:
            never = threading.Event()

            def read(cursor):
                for _ in range(4):
                    never.wait(2)  # like the page
                    cursor = server.data(cursor)["runs"][0]["at"]
            readers = [threading.Thread(target=read, args=(server.data("0")["runs"][0]["at"],))
                       for _ in range(20)]
            before_s, began = server.cpu_s(), time.monotonic()
            for reader in readers:
                reader.start()
            while any(reader.is_alive() for reader in readers):
                run.train(1, 0.1)
            spent_s, took_s = server.cpu_s() - before_s, time.monotonic() - began
            print(f"{spent_s / took_s:.2%} of a core for twenty readers, {spent_s:.2f} s of {took_s:.1f} s")
            self.assertLess(spent_s / took_s, 0.03)
            # It has no connection to the run's process, and no open file for writing in its folder.
            for number in os.listdir(f"/proc/{server.process.pid}/fd"):
                with contextlib.suppress(OSError):
                    self.assertNotIn(str(run.folder), os.readlink(f"/proc/{server.process.pid}/fd/{number}"))
            self.assertEqual(sorted(os.listdir(run.folder)),
                             ["config.json", "events.jsonl", "lock", "metrics.jsonl"])

    @unittest.skipUnless(Chromium.program(), "no Chromium is installed")
    def test_feeds_a_page_in_a_browser_while_the_run_goes_on(self):
        run = self.made_up(name := "<script>alert(1)<|script>")
        with Server(run.folder) as server, Chromium.open() as browser:
            page = browser.page(server.url, offline=False)
            page.wait_for("document.body.innerText.includes('starting')")
            run.train(30)
            run.event("warning", text=HOSTILE)
            page.wait_for("document.documentElement.dataset.charts.includes('loss')")
            page.wait_for("document.getElementById('chart-loss').dataset.points === '60'")
            page.wait_for("document.body.innerText.includes('</script><script>alert(1)')")
            run.train(3)
            page.wait_for("document.getElementById('chart-loss').dataset.points === '66'")
            (run.folder / "metrics.jsonl").write_text("", encoding="ascii")
            run.step = 0
            run.train(2)
            page.wait_for("document.getElementById('chart-loss').dataset.points === '4'")
            run.release()  # a kill, and no other change
            page.wait_for("document.body.innerText.includes('crashed')")
            run.event("end", how="completed")
            page.wait_for("document.body.innerText.includes('completed')")
            self.assertIn(name, page.value("document.body.innerText"))
            self.assertEqual(page.complaints, [])
            server.process.send_signal(signal.SIGTERM)
            page.wait_for("document.body.innerText.includes('this page is out of date')")


@unittest.skipUnless(HAS_ENGINE and pyte, "needs the engine and pyte")
class WatchRuns(Training):
    def test_follows_a_real_run_to_its_end_and_one_that_is_killed(self):
        with TerminalScreen([SLUICE, "watch", "--every", "0.1", self.path / "out"]) as screen:
            screen.wait_for("there is no run here yet")
            self.sluice("train", "run.json", "--out", "out", "--set", "run.eval_every=5", "--steps", "20")
            text = screen.wait_for("out  completed  step 20/20 (100%)", "validation", "checkpoint  step 20")
            last = self.metrics("out")[-1]
            self.assertIn(f"loss {last['loss']:.4g}", text)
            killed = subprocess.Popen([SLUICE, "train", "run.json", "--out", "out", "--overwrite", "--steps", "100000"],
                                      cwd=self.path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
            screen.wait_for("out  training", "/100000")
            killed.kill()
            killed.wait()
            screen.wait_for("out  crashed", "no process is training here")
            screen.press("q")
            self.assertEqual(screen.end(), 0)


if __name__ == "__main__":
    unittest.main()
