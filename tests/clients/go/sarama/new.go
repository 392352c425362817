//go:build !old

package main

import (
	"github.com/IBM/sarama"

	"fetchgate/tests/clients/program"
)

const name = "sarama"

// settle makes the settings that Sarama 1.19 does not have.
func settle(config *sarama.Config, options program.Options) {
	if options.Committed {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	if options.Ranges {
		config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	}
}
