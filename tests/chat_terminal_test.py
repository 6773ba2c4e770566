#!/usr/bin/env python3
"""fathom chat on a terminal: a pasted text is one message, and Ctrl-C at the prompt ends its line. FATHOM: the program."""
import json
import os
import pathlib
import pty
import select
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
WAIT = 60  # seconds at most for an answer


class Terminal:
    def __init__(self, *words):
        self.pid, self.fd = pty.fork()
        self.shown = b""
        if self.pid == 0:
            os.environ.update(TERM="xterm", FATHOM_MODELS=str(ROOT / "models"))
            os.execv(os.environ["FATHOM"], ["fathom", *words])

    def write(self, text):
        os.write(self.fd, text)

    def wait_for(self, text, count=1):
        """Until `text` has been shown `count` times, or the program has ended."""
        end = time.monotonic() + WAIT
        while self.shown.count(text) < count and time.monotonic() < end:
            if not select.select([self.fd], [], [], 1)[0]:
                continue
            try:
                self.shown += os.read(self.fd, 65536)
            except OSError:  # the program has ended
                break
        return self.shown.count(text) >= count


class ChatOnATerminal(unittest.TestCase):
    def test_paste_and_interrupt(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = pathlib.Path(folder) / "kept.json"
            chat = Terminal("chat", "-m", "builtin", "--chat-template", "chatml", "--temp", "0", "-n", "3", "-q")
            self.assertTrue(chat.wait_for(b"\r\n> "))
            self.assertIn(b"\x1b[?2004h", chat.shown)
            chat.write(b"\x1b[200~first line\nsecond line\nthird line\x1b[201~")
            self.assertTrue(chat.wait_for(b"[pasted text 1, 3 lines]"), chat.shown)
            chat.write(b"\r")
            self.assertTrue(chat.wait_for(b"\r\n> ", 2), chat.shown)
            chat.write(b"/save " + bytes(kept) + b"\r")
            self.assertTrue(chat.wait_for(b"\r\n> ", 3), chat.shown)
            time.sleep(0.5)  # the editor takes the terminal over
            chat.write(b"\x03")
            self.assertTrue(chat.wait_for(b"> \r\n"), chat.shown)
            chat.wait_for(b"never shown")
            _, status = os.waitpid(chat.pid, 0)
            self.assertEqual(os.waitstatus_to_exitcode(status), 130)
            messages = json.loads(kept.read_text())["messages"]
            self.assertEqual(messages[0]["content"], "first line\nsecond line\nthird line")


if __name__ == "__main__":
    unittest.main()
