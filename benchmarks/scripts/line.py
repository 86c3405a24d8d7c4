"""Answers each line by one round trip over a held channel to `cat`, in seconds."""

import json
import socket
import sys
import time

import paramiko

host, port, user, key, known_hosts = sys.argv[1:]
client = paramiko.SSHClient()
client.load_host_keys(known_hosts)
client.connect(host, int(port), user, key_filename=key, allow_agent=False, look_for_keys=False)
transport = client.get_transport()
assert transport is not None
assert isinstance(transport.sock, socket.socket)
transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
channel = transport.open_session()
channel.exec_command("cat")
for _ in sys.stdin:
    began = time.monotonic()
    channel.sendall(b"x\n")
    channel.recv(2)
    print(json.dumps(time.monotonic() - began), flush=True)
client.close()
