// Command kafkago consumes with segmentio/kafka-go: a Reader, and so a connection, for each partition.
package main

import (
	"context"

	"github.com/segmentio/kafka-go"

	"fetchgate/tests/clients/program"
)

func main() {
	options := program.Parse()
	isolation := kafka.ReadUncommitted
	if options.Committed {
		isolation = kafka.ReadCommitted
	}
	program.Start("kafka-go", "github.com/segmentio/kafka-go")
	errors := make(chan error)
	context, cancel := context.WithCancel(context.Background())
	if options.Group != "" {
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers:        options.Bootstrap,
			GroupID:        options.Group,
			GroupTopics:    options.Subscribe,
			MinBytes:       1,
			MaxBytes:       10_000_000,
			MaxWait:        program.FetchMaxWait,
			CommitInterval: program.CommitInterval,
			StartOffset:    kafka.FirstOffset,
			Dialer:         &kafka.Dialer{ClientID: options.Named("kafka-go")},
		})
		go read(context, reader, errors)
		close := func() { cancel(); program.Check(reader.Close()) }
		program.Wait(errors, close)
		return
	}
	for _, place := range options.Assign {
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers:        options.Bootstrap,
			Topic:          place.Topic,
			Partition:      place.Partition,
			MinBytes:       1,
			MaxBytes:       10_000_000,
			MaxWait:        program.FetchMaxWait,
			IsolationLevel: isolation,
			Dialer:         &kafka.Dialer{ClientID: options.Named("kafka-go")},
		})
		go read(context, reader, errors)
	}
	program.Wait(errors, cancel)
}

func read(context context.Context, reader *kafka.Reader, errors chan<- error) {
	for {
		message, err := reader.ReadMessage(context)
		if context.Err() != nil {
			return
		}
		if err != nil {
			errors <- err
			continue
		}
		program.Process(convert(message))
	}
}

func convert(message kafka.Message) program.Record {
	var headers []program.Header
	for _, header := range message.Headers {
		headers = append(headers, program.Header{Name: header.Key, Value: header.Value})
	}
	return program.Record{
		Topic: message.Topic, Partition: message.Partition, Offset: message.Offset,
		TimestampMs: message.Time.UnixMilli(), Key: message.Key, Value: message.Value, Headers: headers,
	}
}
