# One dedicated host, filled with instances of one size; optionally the family's metal
# size and a second host with as many instances: the set-ups of chapters 5 and 6 of the
# AWS noisy-neighbour study. Optionally also instances of the size that the cloud places
# anywhere, to measure how much they differ, and pairs by placement group. The lab reaches
# all of them through a small instance of its own, gate: so they keep their addresses when
# they are stopped and started. A dedicated host is billed from its allocation to its
# release, whatever runs on it.

locals {
  name = "quell-noisy-neighbour"
  # The keys of the inventory that all instances but the gate have.
  reach = {
    user     = var.user
    sudo     = true
    jump     = "gate"
    host_key = trimspace(tls_private_key.host.public_key_openssh)
  }
  # One host key for all, so that the inventory has it; and the tools of the network studies.
  user_data = "#cloud-config\n${yamlencode({
    ssh_deletekeys = true
    ssh_keys = {
      ed25519_private = tls_private_key.host.private_key_openssh
      ed25519_public  = tls_private_key.host.public_key_openssh
    }
    packages = ["iperf3", "sockperf"]
  })}"
  # Many instances are switched at once, and the API limits requests.
  aws   = "AWS_RETRY_MODE=standard AWS_MAX_ATTEMPTS=20 aws ec2 --region ${var.region}"
  pairs = ["cluster1", "cluster2", "spread1", "spread2", "single1", "single2"]
}

resource "tls_private_key" "host" {
  algorithm = "ED25519"
}

data "aws_vpc" "default" {
  default = true
}

data "aws_subnets" "zone" {
  filter {
    name   = "vpc-id"
    values = [data.aws_vpc.default.id]
  }
  filter {
    name   = "availability-zone"
    values = [var.availability_zone]
  }
}

data "aws_subnets" "all" {
  filter {
    name   = "vpc-id"
    values = [data.aws_vpc.default.id]
  }
}

resource "aws_key_pair" "lab" {
  key_name_prefix = local.name
  public_key      = var.public_key
}

resource "aws_security_group" "lab" {
  name_prefix = local.name
  description = "SSH from the controller to the gate; all traffic between the instances"
  vpc_id      = data.aws_vpc.default.id

  ingress {
    description = "SSH"
    from_port   = 22
    to_port     = 22
    protocol    = "tcp"
    cidr_blocks = var.from
  }

  ingress {
    description = "between the nodes"
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    self        = true
  }

  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

# Within a cluster group one flow may use 10 Gbps, outside 5 (the study, 6.1).
# Instances on dedicated hosts cannot be in a group: their senders use two flows each.
resource "aws_placement_group" "cluster" {
  name     = "${local.name}-cluster"
  strategy = "cluster"
}

resource "aws_placement_group" "spread" {
  name     = "${local.name}-spread"
  strategy = "spread"
}

resource "aws_instance" "gate" {
  ami                         = var.ami
  instance_type               = "${var.family}.large"
  associate_public_ip_address = true
  subnet_id                   = data.aws_subnets.zone.ids[0]
  key_name                    = aws_key_pair.lab.key_name
  vpc_security_group_ids      = [aws_security_group.lab.id]
  user_data                   = local.user_data
  tags                        = { Name = "${local.name}-gate" }
}

resource "aws_ec2_host" "host" {
  count = var.servers ? 2 : 1

  instance_family   = var.family
  availability_zone = var.availability_zone
  auto_placement    = "off"
  tags              = { Name = "${local.name}-${count.index}" }
}

resource "aws_instance" "node" {
  count = var.nodes

  ami                    = var.ami
  instance_type          = "${var.family}.${var.size}"
  tenancy                = "host"
  host_id                = aws_ec2_host.host[0].id
  subnet_id              = data.aws_subnets.zone.ids[0]
  key_name               = aws_key_pair.lab.key_name
  vpc_security_group_ids = [aws_security_group.lab.id]
  user_data              = local.user_data
  tags                   = { Name = "${local.name}-${count.index == 0 ? "test" : count.index}" }
}

resource "aws_instance" "metal" {
  count = var.metal ? 1 : 0

  ami                    = var.ami
  instance_type          = "${var.family}.metal"
  subnet_id              = data.aws_subnets.zone.ids[0]
  key_name               = aws_key_pair.lab.key_name
  vpc_security_group_ids = [aws_security_group.lab.id]
  user_data              = local.user_data
  tags                   = { Name = "${local.name}-metal" }
}

resource "aws_instance" "server" {
  count = var.servers ? var.nodes : 0

  ami                    = var.ami
  instance_type          = "${var.family}.${var.size}"
  tenancy                = "host"
  host_id                = aws_ec2_host.host[1].id
  subnet_id              = data.aws_subnets.zone.ids[0]
  key_name               = aws_key_pair.lab.key_name
  vpc_security_group_ids = [aws_security_group.lab.id]
  user_data              = local.user_data
  tags                   = { Name = "${local.name}-server${count.index + 1}" }
}

resource "aws_instance" "pair" {
  count = var.groups ? length(local.pairs) : 0

  ami                    = var.ami
  instance_type          = "${var.family}.${var.size}"
  placement_group        = [aws_placement_group.cluster.name, aws_placement_group.spread.name, null][floor(count.index / 2)]
  subnet_id              = data.aws_subnets.zone.ids[0]
  key_name               = aws_key_pair.lab.key_name
  vpc_security_group_ids = [aws_security_group.lab.id]
  user_data              = local.user_data
  tags                   = { Name = "${local.name}-${local.pairs[count.index]}" }
}

# In turn in each zone of the region (the study, 5.2.1: fifty of m5.large).
resource "aws_instance" "instance" {
  count = var.instances

  ami                    = var.ami
  instance_type          = "${var.family}.${var.size}"
  subnet_id              = data.aws_subnets.all.ids[count.index % length(data.aws_subnets.all.ids)]
  key_name               = aws_key_pair.lab.key_name
  vpc_security_group_ids = [aws_security_group.lab.id]
  user_data              = local.user_data
  tags                   = { Name = "${local.name}-instance${count.index + 1}" }
}
