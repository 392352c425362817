// Command sarama consumes with Sarama, which makes no fetch sessions. Built with the tag `old` and old.mod it is
// Sarama 1.19, from before IBM had it: Fetch v4, no transactions.
package main

import (
	"context"

	"github.com/IBM/sarama"

	"fetchgate/tests/clients/program"
)

func main() {
	options := program.Parse()
	config := sarama.NewConfig()
	config.ClientID = options.Named(name)
	config.Version = sarama.MaxVersion
	config.Consumer.MaxWaitTime = program.FetchMaxWait
	config.Consumer.Return.Errors = true
	settle(config, options)
	program.Start("Sarama", "github.com/IBM/sarama")
	errors := make(chan error)
	if options.Group != "" {
		config.Consumer.Offsets.Initial = sarama.OffsetOldest
		config.Consumer.Offsets.CommitInterval = program.CommitInterval
		if options.Session != 0 {
			config.Consumer.Group.Session.Timeout = options.Session
			config.Consumer.Group.Heartbeat.Interval = options.Session / 6
		}
		group, err := sarama.NewConsumerGroup(options.Bootstrap, options.Group, config)
		program.Check(err)
		go join(group, options.Subscribe, member{}, errors)
		program.Wait(errors, func() { program.Check(group.Close()) })
		return
	}
	consumer, err := sarama.NewConsumer(options.Bootstrap, config)
	program.Check(err)

	for _, place := range options.Assign {
		partition, err := consumer.ConsumePartition(place.Topic, int32(place.Partition), sarama.OffsetOldest)
		program.Check(err)
		go forward(partition, errors)
	}
	// Its consumer waits for partition consumers that nobody reads any more: the process ends without it.
	program.Wait(errors, func() {})
}

type member struct{}

func (member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, more := <-claim.Messages():
			if !more {
				return nil
			}
			program.Process(convert(message))
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func join(group sarama.ConsumerGroup, topics []string, handler member, errors chan<- error) {
	go func() {
		for err := range group.Errors() {
			errors <- err
		}
	}()
	for {
		err := group.Consume(context.Background(), topics, handler)
		if err == sarama.ErrClosedConsumerGroup {
			return
		}
		if err != nil {
			errors <- err
		}
	}
}

func forward(partition sarama.PartitionConsumer, errors chan<- error) {
	for {
		select {
		case message := <-partition.Messages():
			program.Process(convert(message))
		case err := <-partition.Errors():
			errors <- err
		}
	}
}

func convert(message *sarama.ConsumerMessage) program.Record {
	var headers []program.Header
	for _, header := range message.Headers {
		headers = append(headers, program.Header{Name: string(header.Key), Value: header.Value})
	}
	return program.Record{
		Topic: message.Topic, Partition: int(message.Partition), Offset: message.Offset,
		TimestampMs: message.Timestamp.UnixMilli(), Key: message.Key, Value: message.Value, Headers: headers,
	}
}
