package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Messages are bytes: the other side of the pipe serialises them.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(message any) ([]byte, error) { return message.([]byte), nil }

func (raw) Unmarshal(data []byte, into any) error {
	*into.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// A call is told by its own channels what to send and when to receive, so that neither waits for the other.
type Call struct {
	note     Note
	pipe     *Pipe
	ctx      context.Context
	cancel   context.CancelFunc
	sends    chan Note
	receives chan Note
}

func call(options Options, pipe *Pipe) error {
	channel, err := dial(options)
	if err != nil {
		return err
	}
	defer channel.Close()
	calls := map[int]*Call{}
	for {
		note, err := pipe.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		switch call := calls[note.ID]; note.What {
		case "begin":
			calls[note.ID] = begin(channel, note, pipe)
		case "send", "end":
			call.sends <- note
		case "receive":
			call.receives <- note
		case "cancel":
			call.cancel()
		default:
			return fmt.Errorf("what is %q?", note.What)
		}
	}
}

func dial(options Options) (*grpc.ClientConn, error) {
	security := insecure.NewCredentials()
	if options.ca != "" {
		own, err := tls.LoadX509KeyPair(options.cert, options.key)
		if err != nil {
			return nil, err
		}
		authority, err := os.ReadFile(options.ca)
		if err != nil {
			return nil, err
		}
		trusted := x509.NewCertPool()
		trusted.AppendCertsFromPEM(authority)
		security = credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{own}, RootCAs: trusted, ServerName: options.name,
		})
	}
	settings := []grpc.DialOption{
		grpc.WithTransportCredentials(security),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodec(raw{}),
			grpc.MaxCallRecvMsgSize(options.mostBytes),
			grpc.MaxCallSendMsgSize(math.MaxInt32),
		),
	}
	if options.keepalive > 0 {
		settings = append(settings, grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: options.keepalive, Timeout: time.Second, PermitWithoutStream: true,
		}))
	}
	return grpc.NewClient("passthrough:///"+options.address, settings...)
}

func begin(channel *grpc.ClientConn, note Note, pipe *Pipe) *Call {
	ctx, cancel := context.WithCancel(context.Background())
	if note.Timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(note.Timeout*float64(time.Second)))
	}
	for _, pair := range note.Metadata {
		ctx = metadata.AppendToOutgoingContext(ctx, string(pair[0]), string(pair[1]))
	}
	call := &Call{note, pipe, ctx, cancel, make(chan Note, 16), make(chan Note, 16)}
	if note.Kind == "unary" {
		go call.invoke(channel)
	} else {
		go call.stream(channel)
	}
	return call
}

func (call *Call) invoke(channel *grpc.ClientConn) {
	var answer []byte
	var trailers metadata.MD
	err := channel.Invoke(call.ctx, call.note.Method, call.note.message, &answer, grpc.Trailer(&trailers))
	if err != nil {
		call.ended(err, trailers)
	} else {
		call.pipe.Say(Note{What: "received", ID: call.note.ID, message: answer})
	}
}

func (call *Call) stream(channel *grpc.ClientConn) {
	kind := &grpc.StreamDesc{ServerStreams: true, ClientStreams: call.note.Kind == "stream"}
	stream, err := channel.NewStream(call.ctx, kind, call.note.Method)
	if err != nil {
		<-call.receives
		call.ended(err, nil)
		return
	}
	go call.send(stream)
	for range call.receives {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil {
			call.ended(err, stream.Trailer())
			return
		}
		call.pipe.Say(Note{What: "received", ID: call.note.ID, message: message})
	}
}

func (call *Call) send(stream grpc.ClientStream) {
	for note := range call.sends {
		var err error
		if note.What == "end" {
			err = stream.CloseSend()
		} else {
			err = stream.SendMsg(note.message)
		}
		what := "sent"
		if err != nil { // why, whoever receives is told
			what = "unsent"
		}
		call.pipe.Say(Note{What: what, ID: call.note.ID})
	}
}

func (call *Call) ended(err error, trailers metadata.MD) {
	said := Note{What: "ended", ID: call.note.ID, Code: -1}
	if !errors.Is(err, io.EOF) {
		found := status.Convert(err)
		said.Code, said.Details = int(found.Code()), found.Message()
	}
	for name, values := range trailers {
		for _, value := range values {
			said.Metadata = append(said.Metadata, [2][]byte{[]byte(name), []byte(value)})
		}
	}
	call.pipe.Say(said)
}
