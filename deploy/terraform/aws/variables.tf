variable "region" {
  description = "where the host is; its prices and stock differ"
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
  description = "instances on the host, the test node included; a host holds its vCPUs over those of the size"
  type        = number
  default     = 12

  validation {
    condition     = var.nodes >= 1
    error_message = "At least the test node."
  }
}

variable "metal" {
  description = "also rent the family's metal size, to run the same threads without a hypervisor; it costs as much as the host"
  type        = bool
  default     = false
}

variable "servers" {
  description = "also a second host with as many instances, for what goes over the network between the two"
  type        = bool
  default     = false
}

variable "instances" {
  description = "also so many instances of the size on no host of ours, in all zones in turn: the study instance-variation has 50"
  type        = number
  default     = 0

  validation {
    condition     = var.instances >= 0
    error_message = "None, or so many."
  }
}

variable "ami" {
  description = "image of the instances, of the family's architecture"
  type        = string
}

variable "user" {
  description = "who logs in on that image, e.g. admin (Debian), ec2-user (Amazon Linux)"
  type        = string
  default     = "admin"
}

variable "public_key" {
  description = "OpenSSH public key of who runs the study"
  type        = string
}

variable "from" {
  description = "addresses that may log in, e.g. 203.0.113.7/32"
  type        = list(string)

  validation {
    condition     = !contains(var.from, "0.0.0.0/0")
    error_message = "Name the addresses that you come from, not the whole internet."
  }
}
