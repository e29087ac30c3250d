"""An OpenAI-compatible server, as a process of its own: `python chat_server.py '{"mode": …}'` prints its port.

Modes: `tiny` samples from a saved embedded model (`folder`), `player` repairs about half of CodeRepair's tasks and
hands the others in as they are, `say` answers with a fixed `text`. `faults` are served first, one a request:
{"status", "headers", "body"}, {"close": true} or {"sleep": seconds}. Every request goes to the file `record`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

OPTIONS: dict[str, Any] = {}
LOCK = threading.Lock()
Answer = Callable[[dict[str, Any]], tuple[str, str, dict[str, Any] | None]]


def tiny() -> Answer:
    """Sample from the embedded model; usage is the true number of tokens."""
    from agentgym_rtmc.trainer.policy import tokens
    from agentgym_rtmc.trainer.policy.base import SampleKey, SamplingParams
    from agentgym_rtmc.trainer.policy.config import PolicyConfig
    from agentgym_rtmc.trainer.transcript import Conversation

    policy = tokens.load_policy(PolicyConfig(kind="hf", model=OPTIONS["folder"]), OPTIONS["folder"])

    def answer(body: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
        params = SamplingParams(temperature=body["temperature"], max_tokens=body["max_tokens"])
        with LOCK:
            conversation = Conversation("one", body["messages"])
            (done,) = policy.complete([conversation], [SampleKey(body.get("seed", 0), 0, 0)], params)
            policy.end_episode("one")
        counts = {"prompt_tokens": len(done.context_ids or ()), "completion_tokens": len(done.token_ids or ())}
        return done.text, done.finish_reason, counts

    return answer


def solves(task_id: str) -> bool:
    """Which tasks `player` solves: about half of them."""
    return hashlib.sha256(task_id.encode()).digest()[0] % 2 == 0


def player() -> Answer:
    """Look at the program, make the right edit if it is a task to solve, submit. Stateless, as such servers are."""
    from agentgym_rtmc.environments.code_repair.env import clip
    from agentgym_rtmc.environments.code_repair.players import edit_command, true_repair, write_action
    from agentgym_rtmc.registration import load_task_set

    tasks = {clip(str(task.public["source"]).rstrip("\n"), 600): task for task in load_task_set("CodeRepair-v0")}

    def answer(body: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
        seen = [message["content"] for message in body["messages"] if message["role"] == "user"]
        commands = ["cat m.py", "submit"]
        task = tasks.get(seen[1]) if len(seen) > 1 else None
        if task is not None and solves(task.id):
            commands.insert(1, edit_command(true_repair(task)))
        usage = {
            "prompt_tokens": sum(len(message["content"]) for message in body["messages"]),
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        return write_action(commands[len(seen) - 1]), "stop", usage

    return answer


def say() -> Answer:
    """A fixed text, without usage."""
    return lambda body: (OPTIONS["text"], OPTIONS.get("finish", "stop"), None)


class Handler(BaseHTTPRequestHandler):
    """Answers `GET /v1/models` and `POST /v1/chat/completions`."""

    protocol_version = "HTTP/1.1"
    answer: Answer

    def do_GET(self) -> None:
        self._send(200 if self._allowed() else 401, {"object": "list", "data": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with LOCK:
            with Path(OPTIONS["record"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"body": body, "path": self.path, "time": time.monotonic()}) + "\n")
            fault = OPTIONS["faults"].pop(0) if OPTIONS.get("faults") else None
        if fault is not None and self._fail(fault):
            return
        if not self._allowed():
            self._send(401, {"error": {"message": "no such key"}})
            return
        text, finish, usage = type(self).answer(body)
        message = {"role": "assistant", "content": text}
        reply = {"id": "x", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}
        reply["choices"][0]["finish_reason"] = finish
        self._send(200, reply | ({"usage": usage} if usage else {}))

    def _allowed(self) -> bool:
        return self.headers.get("authorization", "") == OPTIONS.get("authorization", "")

    def _fail(self, fault: dict[str, Any]) -> bool:
        if "sleep" in fault:
            time.sleep(fault["sleep"])
            return False
        if "close" in fault:
            self.close_connection = True
            self.connection.close()
            return True
        self._send(fault["status"], fault.get("body", {}), fault.get("headers", {}))
        return True

    def _send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        try:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except BrokenPipeError:
            pass  # the client has given up

    def log_message(self, format: str, *args: Any) -> None:
        """Be quiet."""


def main() -> None:
    """Serve on the loopback until killed."""
    OPTIONS.update(json.loads(sys.argv[1]))
    Handler.answer = staticmethod({"tiny": tiny, "player": player, "say": say}[OPTIONS["mode"]]())
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
