{{- define "callgauge.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "callgauge.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "callgauge.labels" -}}
{{ include "callgauge.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{/* Where links lead: the address of the values, without a slash at its end; empty where there is none. */}}
{{- define "callgauge.address" -}}
{{- get .root.Values.addresses .name | trimSuffix "/" }}
{{- end }}

{{/* The rules, with a link to the runbook and to the calls where the values have an address. */}}
{{- define "callgauge.rules" -}}
{{- $runbooks := include "callgauge.address" (dict "root" . "name" "runbooks") }}
{{- $console := include "callgauge.address" (dict "root" . "name" "console") }}
{{- $rules := .Files.Get "files/rules.yml" | fromYaml }}
{{- range $group := $rules.groups }}{{ range $rule := $group.rules }}{{ if $rule.alert }}
{{- if $runbooks }}{{ $_ := set $rule.annotations "runbook_url" (printf "%s/%s.md" $runbooks $rule.alert) }}{{ end }}
{{- if and $console (eq $rule.labels.component "agent") }}{{ $_ := set $rule.annotations "calls_url" (printf "%s/calls?agent={{ $labels.agent | urlquery }}&tenant={{ $labels.tenant | urlquery }}&environment={{ $labels.environment | urlquery }}" $console) }}{{ end }}
{{- end }}{{ end }}{{ end }}
{{- toYaml $rules }}
{{- end }}

{{/* A dashboard, with links to the calls and to the runbooks where the values have an address. */}}
{{- define "callgauge.dashboard" -}}
{{- $runbooks := include "callgauge.address" (dict "root" .root "name" "runbooks") }}
{{- $console := include "callgauge.address" (dict "root" .root "name" "console") }}
{{- $board := .root.Files.Get .file | fromJson }}
{{- $links := list }}
{{- if $runbooks }}{{ $links = append $links (dict "title" "Runbook" "targetBlank" true "url" (printf "%s/${__data.fields.alertname}.md" $runbooks)) }}{{ end }}
{{- if $console }}
{{- $_ := set $board "links" (append $board.links (dict "title" "Running calls" "type" "link" "url" (printf "%s/calls" $console))) }}
{{- $links = append $links (dict "title" "Calls" "targetBlank" true "url" (printf "%s/calls?agent=${__data.fields.agent:percentencode}&tenant=${__data.fields.tenant:percentencode}&environment=${__data.fields.environment:percentencode}" $console)) }}
{{- end }}
{{- range $board.panels }}{{ if and $links (eq .type "table") }}{{ $_ := set .fieldConfig.defaults "links" $links }}{{ end }}{{ end }}
{{- $board | toPrettyJson }}
{{- end }}
