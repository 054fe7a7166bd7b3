package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Echo answers as the one of kits/loop_grpc/tests/echo_service.py.
type Echo struct{ pipe *Pipe }

func serve(options Options, pipe *Pipe) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(options.mostBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: options.age, Time: options.keepalive, Timeout: time.Second,
		}),
	)
	echo := Echo{pipe}
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Echo",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "One", Handler: echo.one}},
		Streams: []grpc.StreamDesc{
			{StreamName: "Many", Handler: echo.many, ServerStreams: true},
			{StreamName: "Talk", Handler: echo.talk, ServerStreams: true, ClientStreams: true},
			{StreamName: "Flood", Handler: echo.flood, ServerStreams: true, ClientStreams: true},
		},
	}, echo)
	go server.Serve(listener)
	pipe.Say(Note{What: "listens", Port: listener.Addr().(*net.TCPAddr).Port})
	if _, err = pipe.Receive(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("a server is told nothing: %v", err)
	}
	server.Stop()
	return nil
}

func (echo Echo) one(
	_ any, ctx context.Context, read func(any) error, _ grpc.UnaryServerInterceptor,
) (any, error) {
	var request wrapperspb.BytesValue
	if err := read(&request); err != nil {
		return nil, err
	}
	switch string(request.Value) {
	case "slow":
		defer echo.ended()
		<-ctx.Done()
		return nil, ctx.Err()
	case "raise":
		return nil, errors.New("a fault of the servicer")
	case "metadata":
		said, _ := metadata.FromIncomingContext(ctx)
		written := fmt.Sprintf("%s b'%s'", said.Get("word")[0], escaped(said.Get("raw-bin")[0]))
		return wrapperspb.Bytes([]byte(written)), nil
	case "abort":
		grpc.SetTrailer(ctx, metadata.Pairs("why", "asked", "raw-bin", "\x00\xff"))
		return nil, status.Error(codes.FailedPrecondition, "100 % no: \u00e9\n"+strings.Repeat("x", 100))
	}
	return &request, nil
}

func (echo Echo) many(_ any, stream grpc.ServerStream) error {
	var request wrapperspb.BytesValue
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	count, err := strconv.Atoi(string(request.Value))
	for number := 0; number < count && err == nil; number++ {
		err = stream.SendMsg(wrapperspb.Bytes([]byte(strconv.Itoa(number))))
	}
	return err
}

func (echo Echo) talk(_ any, stream grpc.ServerStream) error {
	defer echo.ended()
	for {
		var request wrapperspb.BytesValue
		if err := stream.RecvMsg(&request); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		switch string(request.Value) {
		case "hold":
			<-stream.Context().Done()
		case "abort":
			return status.Error(codes.Aborted, "as was asked")
		}
		if err := stream.SendMsg(&request); err != nil {
			return err
		}
	}
}

func (echo Echo) flood(_ any, stream grpc.ServerStream) error {
	var request wrapperspb.BytesValue
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	var count, size int
	_, err := fmt.Sscan(string(request.Value), &count, &size)
	for ; count > 0 && err == nil; count-- {
		err = stream.SendMsg(wrapperspb.Bytes(make([]byte, size)))
	}
	return err
}

// A handler of a stream, or a slow one, is done.
func (echo Echo) ended() { echo.pipe.Say(Note{What: "ended"}) }

func escaped(value string) string {
	var written strings.Builder
	for _, each := range []byte(value) {
		fmt.Fprintf(&written, "\\x%02x", each)
	}
	return written.String()
}
