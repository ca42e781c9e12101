# The output of `terraform output -json` is an inventory of the lab (docs/hosts.md). The lab
# switches neighbours on and off; on again, they are on the same dedicated host.
output "quell_hosts" {
  description = "hosts by name"
  value = merge(
    { gate = { address = aws_instance.gate.public_ip, user = var.user, host_key = local.reach.host_key } },
    { for i, n in aws_instance.node : "test" => merge(local.reach, { address = n.private_ip }) if i == 0 },
    { for i, n in aws_instance.node : "nb${i}" => merge(local.reach, {
      address = n.private_ip
      up      = "${local.aws} start-instances --instance-ids ${n.id} && ${local.aws} wait instance-running --instance-ids ${n.id}"
      down = join(" && ", [
        "${local.aws} stop-instances --instance-ids ${n.id}", "${local.aws} wait instance-stopped --instance-ids ${n.id}",
        "${local.aws} modify-instance-placement --instance-id ${n.id} --affinity host --host-id ${n.host_id}",
      ])
    }) if i > 0 },
    { for n in aws_instance.metal : "metal" => merge(local.reach, { address = n.private_ip }) },
    { for i, n in aws_instance.server : (i == 0 ? "sink" : "peer${i}") => merge(local.reach, { address = n.private_ip }) },
    { for i, n in aws_instance.instance : "instance${i + 1}" => merge(local.reach, { address = n.private_ip }) },
    { for i, n in aws_instance.pair : local.pairs[i] => merge(local.reach, { address = n.private_ip }) },
  )
}
