# The output of `terraform output -json` is an inventory of the lab (docs/hosts.md).
output "quell_hosts" {
  description = "hosts by name"
  value = merge(
    { for i, n in aws_instance.node : (i == 0 ? "test" : "nb${i}") => { address = n.public_ip, user = var.user, sudo = true } },
    { for n in aws_instance.metal : "metal" => { address = n.public_ip, user = var.user, sudo = true } },
    { for i, n in aws_instance.server : "server${i + 1}" => { address = n.public_ip, user = var.user, sudo = true } },
    { for i, n in aws_instance.instance : "instance${i + 1}" => { address = n.public_ip, user = var.user, sudo = true } },
  )
}
