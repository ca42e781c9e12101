variable "region" {
  description = "region of the host; prices and availability differ"
  type        = string
  default     = "us-east-2"
}

variable "availability_zone" {
  description = "zone of the dedicated host and everything on it"
  type        = string
  default     = "us-east-2a"
}

variable "family" {
  description = "instance family of the dedicated host, e.g. m5, m6i, m6a, m6g"
  type        = string
  default     = "m5"
}

variable "size" {
  description = "size of the test node and its neighbours, e.g. large, 2xlarge"
  type        = string
  default     = "2xlarge"
}

variable "nodes" {
  description = "instances on the host, including the test node; a host holds its vCPUs ÷ those of the size"
  type        = number
  default     = 12

  validation {
    condition     = var.nodes >= 1
    error_message = "Use 1 or more nodes: one is the test node."
  }
}

variable "metal" {
  description = "also rent the family's metal size, to run the same threads without a hypervisor; it costs as much as the host"
  type        = bool
  default     = false
}

variable "servers" {
  description = "also a second host with as many instances, for traffic between the two hosts"
  type        = bool
  default     = false
}

variable "instances" {
  description = "also this many instances of the size outside the dedicated hosts, in all zones in turn: the study instance-variation uses 50"
  type        = number
  default     = 0

  validation {
    condition     = var.instances >= 0
    error_message = "Use 0 or more instances."
  }
}

variable "groups" {
  description = "also three pairs of instances outside the dedicated hosts: in a cluster group, in a spread group, and in none"
  type        = bool
  default     = false
}

variable "ami" {
  description = "image of the instances, of the family's architecture"
  type        = string
}

variable "user" {
  description = "login user of that image, e.g. admin (Debian), ec2-user (Amazon Linux)"
  type        = string
  default     = "admin"
}

variable "public_key" {
  description = "OpenSSH public key of the operator of the study"
  type        = string
}

variable "from" {
  description = "addresses that may log in, e.g. 203.0.113.7/32"
  type        = list(string)

  validation {
    condition     = !contains(var.from, "0.0.0.0/0")
    error_message = "Name your own addresses, not the whole internet."
  }
}
