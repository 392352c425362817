// Command saramaproduce produces with IBM/sarama, idempotently, until told to stop: ["sarama", 1], ["sarama", 2] and so on
// to each partition in turn. At its end it tells how many were sent to each partition.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/IBM/sarama"

	"fetchgate/tests/clients/program"
)

// pause and each make a hundred records a second.
const (
	pause = 50 * time.Millisecond
	each  = 5
)

func main() {
	options := program.Parse()
	config := sarama.NewConfig()
	config.ClientID = "sarama"
	config.Version = sarama.MaxVersion
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Retry.Max = 50
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewAsyncProducer(options.Bootstrap, config)
	program.Check(err)

	out := json.NewEncoder(os.Stdout)
	stop := make(chan struct{})
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		close(stop)
	}()
	told := make(chan struct{}, 1<<20)
	go func() {
		for {
			select {
			case <-producer.Successes():
			case problem := <-producer.Errors():
				program.Check(out.Encode(map[string]any{"kind": "error", "code": "produce", "text": problem.Error()}))
			}
			told <- struct{}{}
		}
	}()
	counts := make([]int, len(options.Assign))
	for turn := 0; ; turn++ {
		select {
		case <-stop:
			// Who is closed gives up what it is about to send again.
			for range turn {
				<-told
			}
			program.Check(out.Encode(map[string]any{"kind": "end", "counts": counts}))
			return
		default:
		}
		place := options.Assign[turn%len(options.Assign)]
		counts[place.Partition]++
		value := fmt.Sprintf("[\"sarama\", %d]", counts[place.Partition])
		producer.Input() <- &sarama.ProducerMessage{
			Topic: place.Topic, Partition: int32(place.Partition), Key: sarama.StringEncoder("key"),
			Value: sarama.StringEncoder(value),
		}
		if turn%each == 0 {
			time.Sleep(pause)
		}
	}
}
