"""Files to deploy the gateway with."""
