"""gRPC on the event loop of the process: HTTP/2 as far as gRPC needs it (RFC 9113), and gRPC's
calls over it (gRPC's PROTOCOL-HTTP2.md).

grpc.aio receives in a thread of gRPC's core, which wakes the loop for each message, and whose own
sleep each message to be sent interrupts. A message a step is most of what a token costs where few
sequences run, so the components send theirs without threads: docs/design/0027-grpc-on-the-loop.md.
"""
