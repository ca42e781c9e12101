# tofu test, or terraform test: the inventory, from providers that are mocked. Nothing is rented.
mock_provider "aws" {
  mock_data "aws_subnets" {
    defaults = { ids = ["subnet-1", "subnet-2"] }
  }
}

mock_provider "tls" {}

variables {
  ami        = "ami-1"
  public_key = "ssh-ed25519 AAAA"
  from       = ["203.0.113.7/32"]
}

run "as_it_is" {
  command = apply
  assert {
    condition     = sort(keys(output.quell_hosts)) == sort(concat(["gate", "test"], [for i in range(1, 12) : "nb${i}"]))
    error_message = "Hosts: ${join(" ", keys(output.quell_hosts))}."
  }
}

run "everything" {
  command = apply
  variables {
    nodes     = 3
    metal     = true
    servers   = true
    groups    = true
    instances = 2
  }
  assert {
    condition = sort(keys(output.quell_hosts)) == sort(["gate", "test", "nb1", "nb2", "metal", "sink", "peer1", "peer2",
    "cluster1", "cluster2", "spread1", "spread2", "single1", "single2", "instance1", "instance2"])
    error_message = "Hosts: ${join(" ", keys(output.quell_hosts))}."
  }
}
