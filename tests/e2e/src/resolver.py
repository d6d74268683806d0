# A DNS server: `resolver.py ADDRESS PORT ANSWER` listens there, and answers every name that ends in "example" with one address.
import socket, sys

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], int(sys.argv[2])))
address = socket.inet_aton(sys.argv[3])
print("listening", flush=True)
while True:
    question, client = server.recvfrom(4096)
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1:at + 1 + question[at]].decode())
        at += 1 + question[at]
    asked, kind = question[12:at + 5], question[at + 1:at + 3]
    print("asked", ".".join(labels), flush=True)
    known = labels[-1:] == ["example"]
    found = known and kind == b"\x00\x01"
    answer = b"\xc0\x0c" + kind + b"\x00\x01\x00\x00\x00\x05\x00\x04" + address if found else b""
    status = b"\x81\x80" if known else b"\x81\x83"
    server.sendto(question[:2] + status + b"\x00\x01" + bytes([0, found]) + b"\x00\x00\x00\x00" + asked + answer, client)
