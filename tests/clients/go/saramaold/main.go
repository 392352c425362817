// Command saramaold consumes with Shopify/sarama 1.19, from before IBM had it: Fetch v4, no transactions.
package main

import (
	"context"

	"github.com/Shopify/sarama"

	"fetchgate/tests/clients/program"
)

func main() {
	options := program.Parse()
	config := sarama.NewConfig()
	config.ClientID = options.Named("sarama-1.19")
	config.Version = sarama.MaxVersion
	config.Consumer.MaxWaitTime = program.FetchMaxWait
	config.Consumer.Return.Errors = true
	program.Start("Sarama", "github.com/Shopify/sarama")
	errors := make(chan error)
	if options.Group != "" {
		config.Consumer.Offsets.Initial = sarama.OffsetOldest
		config.Consumer.Offsets.CommitInterval = program.CommitInterval
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
	program.Wait(errors, func() {})
}

type member struct{}

func (member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		program.Process(convert(message))
		session.MarkMessage(message, "")
	}
	return nil
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
