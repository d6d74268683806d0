"""A web server that reads requests and never answers (`silent`), or sends the head of an answer and
nothing after it (`quiet`). Arguments: CERTIFICATE KEY SCHEME:PORT=KIND..."""

import socket
import ssl
import sys
import threading

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def serve(connection, context, kind):
    if context is not None:
        connection = context.wrap_socket(connection, server_side=True)
    connection.recv(65536)
    if kind == "quiet":
        connection.sendall(HEAD)
    # Until the client leaves.
    connection.recv(65536)


def accept(listener, context, kind):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, context, kind), daemon=True).start()


tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.minimum_version = ssl.TLSVersion.TLSv1_3
tls.load_cert_chain(sys.argv[1], sys.argv[2])
for port_of_kind in sys.argv[3:]:
    where, kind = port_of_kind.split("=")
    scheme, port = where.split(":")
    listener = socket.create_server(("", int(port)))
    context = tls if scheme == "https" else None
    threading.Thread(target=accept, args=(listener, context, kind), daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
