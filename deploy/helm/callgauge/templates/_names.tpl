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

{{/* A file with the addresses of the values in place of those of deploy/addresses.yaml. */}}
{{- define "callgauge.addressed" -}}
{{- $shipped := .root.Files.Get "files/addresses.yaml" | fromYaml }}
{{- $text := .root.Files.Get .file }}
{{- range $name := list "runbooks" "console" }}
{{- with get $.root.Values.addresses $name }}{{ $text = replace (get $shipped $name) (trimSuffix "/" .) $text }}{{ end }}
{{- end }}
{{- $text }}
{{- end }}
