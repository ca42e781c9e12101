{{- define "quell.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- /* Names of objects end in -agent and -server, within the 63 bytes of a label. */}}
{{- define "quell.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "quell.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "quell.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Called with a dict of root and component. */}}
{{- define "quell.selector" -}}
app.kubernetes.io/name: {{ include "quell.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "quell.labels" -}}
{{ include "quell.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "quell.image" -}}
{{ printf "%s/%s:%s" .root.Values.image.registry .repository (.root.Values.image.tag | default .root.Chart.AppVersion) | quote }}
{{- end }}

{{- /* Called with a mode: YAML reads a bare on and off as true and false. */}}
{{- define "quell.mode" -}}
{{- if kindIs "bool" . }}{{ ternary "on" "off" . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- define "quell.serverURL" -}}
{{- if .Values.agent.server.url }}{{ .Values.agent.server.url }}
{{- else if .Values.server.enabled }}{{ printf "tls://%s-server.%s.svc:4222" (include "quell.fullname" .) .Release.Namespace }}
{{- end }}
{{- end }}

{{- /* The agent's configuration: the chart's keys, and agent.config with all others. */}}
{{- define "quell.agentConfig" -}}
{{- $a := .Values.agent }}
{{- $own := dict "state_dir" $a.stateDir "journals" (printf "%s/journals" $a.stateDir) "socket" "/run/quell/agent.sock" "listen" (printf ":%d" (int $a.port)) }}
{{- $_ := set $own "enforce" (dict "mode" (include "quell.mode" $a.mode)) }}
{{- with include "quell.serverURL" . }}
{{- $server := dict "url" . "credentials" (printf "%s/agent.creds" $a.stateDir) "credentials_later" true }}
{{- if $a.server.ca }}{{ $_ := set $server "tls" (dict "ca" "/etc/quell/ca.crt") }}{{ end }}
{{- $_ := set $own "server" $server }}
{{- end }}
{{- if $a.kubelet.enabled }}
{{- $secrets := "/var/run/secrets/kubernetes.io/serviceaccount" }}
{{- $_ := set $own "names" (dict "kubelet" (dict "token" (printf "%s/token" $secrets) "ca" (ternary "/etc/kubelet-ca.crt" (printf "%s/ca.crt" $secrets) (ne $a.kubelet.ca "")))) }}
{{- end }}
{{- toYaml (mergeOverwrite (deepCopy $a.config) $own) }}
{{- end }}

{{- define "quell.serverConfig" -}}
{{- $own := dict "state_dir" "/var/lib/quell-server/state" "listen" ":9781" "tokens_file" (printf "/etc/quell/tokens/%s" .Values.server.tokens.key)
      "tls" (dict "cert" "/etc/quell/tls/tls.crt" "key" "/etc/quell/tls/tls.key") "bus" (dict "listen" ":4222") }}
{{- $api := dict "url" "https://kubernetes.default.svc" }}
{{- if .Values.server.events }}{{ $_ := set $own "notify" (dict "kubernetes" $api) }}{{ end }}
{{- $mode := include "quell.mode" .Values.server.evict }}
{{- if ne $mode "off" }}{{ $_ := set $own "evict" (dict "mode" $mode "kubernetes" $api) }}{{ end }}
{{- toYaml (mergeOverwrite (deepCopy .Values.server.config) $own) }}
{{- end }}

{{- /* Whether the server talks to the API server. */}}
{{- define "quell.serverAsksAPI" -}}
{{- if or .Values.server.events (ne (include "quell.mode" .Values.server.evict) "off") }}yes{{ end }}
{{- end }}
