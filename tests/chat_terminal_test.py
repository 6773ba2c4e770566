#!/usr/bin/env python3
"""fathom chat on a terminal: pasted texts, the history, other locales, Ctrl-C, /load and /budget. FATHOM: the program."""
import json
import os
import pathlib
import pty
import select
import signal
import tempfile
import termios
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
WAIT = 60  # seconds at most for an answer, or for the end
PROMPT, FURTHER = b"\r\n> ", b"\r\n. "


def pasted(text):
    """`text` as a terminal sends what is pasted."""
    return b"\x1b[200~" + text + b"\x1b[201~"


class Terminal:
    def __init__(self, *words, locale):
        self.pid, self.fd = pty.fork()
        self.shown = b""
        self.written = 0  # how much had been shown before the last write
        self.code = None
        if self.pid == 0:
            os.environ.update(TERM="xterm", FATHOM_MODELS=str(ROOT / "models"), LC_ALL=locale)
            os.execv(os.environ["FATHOM"], ["fathom", *words])

    def read(self, seconds):
        """Returns False when the program has closed the terminal."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            self.shown += os.read(self.fd, 65536)
            return True
        except OSError:
            return False

    def write(self, text):
        self.written = len(self.shown)
        os.write(self.fd, text)

    def answer(self):
        """What has been shown since the last write."""
        return self.shown[self.written:]

    def wait_for(self, text):
        """Until `text` has been shown since the last write, or the program has ended."""
        end = time.monotonic() + WAIT
        while text not in self.answer() and time.monotonic() < end and self.read(1):
            pass
        return text in self.answer()

    def reads(self):
        """Whether the editor has the terminal and the program's main thread sleeps: it waits for a key."""
        if termios.tcgetattr(self.fd)[3] & termios.ECHO:
            return False
        return pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"

    def wait_for_prompt(self, prompt=PROMPT):
        """Until the program waits for a line. The prompt comes before the editor takes the terminal over."""
        if not self.wait_for(prompt):
            return False
        end = time.monotonic() + WAIT
        while not self.reads() and time.monotonic() < end:
            time.sleep(0.01)
        return self.reads()

    def say(self, text=b"", prompt=PROMPT):
        """Sends a line. Returns whether a prompt follows."""
        self.write(text + b"\r")
        return self.wait_for_prompt(prompt)

    def end(self, seconds=WAIT):
        """Returns the program's exit code. A program that does not end in time is killed: -9."""
        end = time.monotonic() + seconds
        while self.code is None:
            self.read(0.01)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= end:
                os.kill(self.pid, signal.SIGKILL)
        return self.code


class ChatOnATerminal(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def chat(self, *words, model="builtin", locale="C.UTF-8"):
        chat = Terminal("chat", "-m", model, "--chat-template", "chatml", "--temp", "0", "-n", "3", *words, locale=locale)
        self.addCleanup(os.close, chat.fd)
        self.addCleanup(chat.end, 0)
        self.assertTrue(chat.wait_for_prompt(), chat.shown)
        return chat

    def say(self, chat, text=b"", prompt=PROMPT):
        self.assertTrue(chat.say(text, prompt), chat.shown)

    def paste(self, chat, text, shown):
        chat.write(pasted(text))
        self.assertTrue(chat.wait_for(shown), chat.shown)
        self.say(chat)

    def messages(self, chat):
        kept = self.folder / "kept.json"
        self.say(chat, b"/save " + bytes(kept))
        return json.loads(kept.read_text())["messages"]

    def questions(self, chat):
        return [each["content"] for each in self.messages(chat) if each["role"] == "user"]

    def interrupt(self, chat):
        """Ctrl-C at the prompt ends its line and the program."""
        chat.write(b"\x03")
        self.assertEqual(chat.end(), 130, chat.shown)
        self.assertIn(b"\r\n", chat.answer())

    def load(self, chat, *roles):
        file = self.folder / "talk.json"
        file.write_text(json.dumps({"messages": [{"role": role, "content": f"text {i}"} for i, role in enumerate(roles)]}))
        self.say(chat, b"/load " + bytes(file))

    def test_pasted_text_is_one_message(self):
        chat = self.chat("-q")
        self.assertIn(b"\x1b[?2004h", chat.shown)
        first, second = "first line\nsécond line €\nthird line 🙂", "fourth\nfifth [pasted text 1, 3 lines]"
        self.paste(chat, first.encode(), b"[pasted text 1, 3 lines]")
        self.paste(chat, second.encode(), b"[pasted text 2, 2 lines]")
        self.paste(chat, "één".encode(), "één".encode())
        self.paste(chat, b"no \xff\xc3UTF-8\xe9", b"no UTF-8")  # such bytes are no text: they go
        self.assertEqual(self.questions(chat), [first, second, "één", "no UTF-8"])
        self.interrupt(chat)

    def test_recalled_mark_is_its_text(self):
        chat = self.chat("-q")
        self.paste(chat, b"a\nb", b"[pasted text 1, 2 lines]")
        chat.write(b"\x10")  # Ctrl-P: the line before
        self.assertTrue(chat.wait_for(b"[pasted text 1, 2 lines]"), chat.shown)
        self.paste(chat, b"c\nd", b"[pasted text 2, 2 lines]")
        self.assertEqual(self.questions(chat), ["a\nb", "a\nbc\nd"])

    def test_characters_in_other_locales(self):
        for locale in "C", "no_such_locale":
            with self.subTest(locale):
                chat = self.chat("-q", locale=locale)
                self.say(chat, "é".encode())
                chat.write(b"\x10")  # Ctrl-P
                self.assertTrue(chat.wait_for("é".encode()), chat.shown)
                self.paste(chat, "a\né".encode(), b"[pasted text 1, 2 lines]")
                self.assertEqual(self.questions(chat), ["é", "éa\né"])

    def test_interrupt_drops_what_was_begun(self):
        chat = self.chat("-q")
        self.say(chat, b"hello\\", FURTHER)
        self.interrupt(chat)
        self.assertNotIn(PROMPT, chat.answer())

    def test_load_wants_questions_and_answers_in_turn(self):
        chat = self.chat("-q")
        self.load(chat, "system", "user", "assistant")
        kept = self.messages(chat)
        self.assertEqual([each["role"] for each in kept], ["system", "user", "assistant"])
        for roles, why in (
            (("user",), b"expected an answer after the last question"),
            (("user", "assistant", "user"), b"expected an answer after the last question"),
            (("user", "user"), b"messages[1]: expected the role assistant, got user"),
            (("assistant", "user"), b"messages[0]: expected the role user, got assistant"),
            (("user", "assistant", "system"), b"messages[2]: expected the role user, got system"),
            (("user", "judge"), b"messages[1]: 'role' must be system, user or assistant, got 'judge'"),
        ):
            with self.subTest(roles):
                self.load(chat, *roles)
                self.assertIn(why, chat.answer())
                self.assertEqual(self.messages(chat), kept)  # a file that is refused changes nothing
        self.load(chat)
        self.assertEqual(self.messages(chat), [])

    def test_own_budget_is_the_one_at_the_start(self):
        chat = self.chat("--budget", "0.9")
        self.assertIn(b"(own: as the program was started)", chat.shown)
        self.say(chat, b"/budget 0.8")
        self.assertIn(b"fathom: budget 0.8\r\n", chat.answer())
        self.say(chat, b"/budget own")
        self.assertIn(b"fathom: budget 0.9\r\n", chat.answer())

    def test_dense_model_takes_a_budget_of_1_alone(self):
        chat = self.chat(model=str(ROOT / "tests/data/stories260k/stories260K.bin"))
        self.say(chat, b"/budget 1")
        self.assertIn(b"fathom: budget 1\r\n", chat.answer())
        self.assertNotIn(b"dense model", chat.answer())
        self.say(chat, b"/budget 0.8")
        self.assertIn(b"a budget of 0.8 needs an adapter", chat.answer())
        self.say(chat, b"hello")  # the budget of 1 is still set, and answers
        self.assertNotIn(b"budget", chat.answer())


if __name__ == "__main__":
    unittest.main()
