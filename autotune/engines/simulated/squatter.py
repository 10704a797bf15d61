"""A stranger on the server's port: answers as another server would, in its own session."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time


def start_squatter(host: str, port: int) -> None:
    """Start the stranger and wait until it listens. It ends soon after the server does."""
    command = [sys.executable, "-m", __name__, host, str(port), str(os.getpid())]
    keep = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.Popen(command, env=keep, start_new_session=True, close_fds=True)
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) == 0:
                return
        time.sleep(0.02)


def serve(host: str, port: int, server_pid: int) -> None:
    """Answer everything with 200 and another model's name while the server lives."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
        listener.settimeout(0.2)
        while os.path.exists(f"/proc/{server_pid}"):
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    body = json.dumps({"object": "list", "data": [{"id": "somebody-else", "object": "model"}]})
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    with connection:
        connection.settimeout(2.0)
        try:
            if connection.recv(65536):
                connection.sendall(f"{head}connection: close\r\n\r\n{body}".encode())
        except OSError:
            return


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
