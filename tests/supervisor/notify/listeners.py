"""Servers on loopback that take messages, and can be told to fail, to hang, or to be away."""

import http.server
import json
import socketserver
import threading
from contextlib import contextmanager


class Web:
    """`answers`: the codes of the next posts, then 204; while `hangs` is set none is answered."""

    def __init__(self):
        self.posts, self.answers, self.headers, self.heads = [], [], {}, []
        self.hangs, self.over = threading.Event(), threading.Event()
        self.heard = threading.Condition()
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if web.hangs.is_set():
                    web.over.wait(60)
                    return
                code = web.answers.pop(0) if web.answers else 204
                with web.heard:
                    web.heads.append(self.headers)
                    web.posts.append((self.path, json.loads(data), code))
                    web.heard.notify_all()
                self.send_response(code)
                for name, value in web.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 64

            def handle_error(self, *_):
                """Who asked has left."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self._server.server_port}/services/T0/s3cr3t-path"

    @property
    def taken(self):
        return [said for _, said, code in self.posts if code < 300]

    def wait_for(self, count, limit_s=150):
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.taken) >= count, limit_s), self.posts
        return self.taken

    def close(self):
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Mail:
    """An SMTP server without TLS; `refuses` is its answer to RCPT instead of 250."""

    def __init__(self, refuses=None):
        self.letters, self.recipients = [], []
        mail = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                self.say("220 here")
                while line := self.rfile.readline().decode().strip():
                    match line.split(maxsplit=1)[0].upper():
                        case "EHLO":
                            self.say("250 here")
                        case "RCPT" if refuses is not None:
                            self.say(refuses)
                        case "RCPT":
                            mail.recipients.append(line.partition(":")[2])
                            self.say("250 ok")
                        case "DATA":
                            self.say("354 go on")
                            self.take()
                        case "QUIT":
                            self.say("221 bye")
                            return
                        case _:
                            self.say("250 ok")

            def take(self):
                lines = []
                while (line := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                    lines.append(line)
                mail.letters.append("\n".join(lines))
                self.say("250 taken")

            def say(self, text):
                self.wfile.write(f"{text}\r\n".encode())

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

            def handle_error(self, *_):
                """Who asked has left."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def open_listener(kind, *more):
    listener = kind(*more)
    try:
        yield listener
    finally:
        listener.close()
