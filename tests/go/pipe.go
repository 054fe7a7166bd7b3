package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"io"
	"sync"
	"time"
)

type Options struct {
	address             string
	mostBytes           int
	age, keepalive      time.Duration
	cert, key, ca, name string
}

// Note is what either side says: `what` of call `id`, with a message beside it.
type Note struct {
	What     string      `json:"what"`
	ID       int         `json:"id,omitempty"`
	Kind     string      `json:"kind,omitempty"` // of a call: unary, server-stream or stream
	Method   string      `json:"method,omitempty"`
	Timeout  float64     `json:"timeout,omitempty"` // seconds; 0: none
	Metadata [][2][]byte `json:"metadata,omitempty"`
	Code     int         `json:"code,omitempty"` // of gRPC; -1: the call ended well
	Details  string      `json:"details,omitempty"`
	Port     int         `json:"port,omitempty"`
	message  []byte
}

// Pipe carries notes: the length of its JSON and of its message, and both.
type Pipe struct {
	from  *bufio.Reader
	to    io.Writer
	write sync.Mutex
}

func NewPipe(from io.Reader, to io.Writer) *Pipe {
	return &Pipe{from: bufio.NewReader(from), to: to}
}

// Receive returns io.EOF where nothing more comes.
func (pipe *Pipe) Receive() (note Note, err error) {
	var head [8]byte
	if _, err = io.ReadFull(pipe.from, head[:]); err != nil {
		return note, err
	}
	said := make([]byte, binary.BigEndian.Uint32(head[:4]))
	message := make([]byte, binary.BigEndian.Uint32(head[4:]))
	for _, part := range [][]byte{said, message} {
		if _, err = io.ReadFull(pipe.from, part); err != nil {
			return note, err
		}
	}
	err = json.Unmarshal(said, &note)
	note.message = message
	return note, err
}

func (pipe *Pipe) Say(note Note) {
	said, err := json.Marshal(note)
	if err != nil {
		panic(err)
	}
	var head [8]byte
	binary.BigEndian.PutUint32(head[:4], uint32(len(said)))
	binary.BigEndian.PutUint32(head[4:], uint32(len(note.message)))
	pipe.write.Lock()
	defer pipe.write.Unlock()
	for _, part := range [][]byte{head[:], said, note.message} {
		pipe.to.Write(part) // whoever reads may be gone
	}
}
