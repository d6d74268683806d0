# A DNS server for every name: the address in the first argument is where it listens, and what each name gets is 127.0.0.1.
import socket, sys

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 53))
print("listening", flush=True)
while True:
    question, client = server.recvfrom(4096)
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1:at + 1 + question[at]].decode())
        at += 1 + question[at]
    asked, kind = question[12:at + 5], question[at + 1:at + 3]
    print("asked", ".".join(labels), flush=True)
    found = kind == b"\x00\x01"
    answer = b"\xc0\x0c" + kind + b"\x00\x01\x00\x00\x00\x05\x00\x04\x7f\x00\x00\x01" if found else b""
    server.sendto(question[:2] + b"\x81\x80\x00\x01" + bytes([0, found]) + b"\x00\x00\x00\x00" + asked + answer, client)
