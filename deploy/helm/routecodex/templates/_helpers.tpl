{{- define "routecodex.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "routecodex.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "routecodex.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "routecodex.selectorLabels" -}}
app.kubernetes.io/name: {{ include "routecodex.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "routecodex.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "routecodex.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "routecodex.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "routecodex.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "routecodex.config" -}}
{{- if regexMatch "(?m)^\\s*\\[server\\]" .Values.config -}}
{{- fail "config has a table [server]: set server.port, server.drainSeconds and server.extra instead" -}}
{{- end -}}
[server]
host = "0.0.0.0"
port = {{ .Values.server.port | int }}
drain_seconds = {{ .Values.server.drainSeconds | int }}
drain_notice_ms = {{ .Values.server.drainNoticeMs | int }}
{{ .Values.server.extra | trim }}

{{ required "config must hold the configuration: providers and routing" .Values.config | trim }}
{{- end -}}

{{/* Longer than notice and drain together: streams may end before the container is killed. */}}
{{- define "routecodex.graceSeconds" -}}
{{- add (int .Values.server.drainSeconds) (div (add (int .Values.server.drainNoticeMs) 999) 1000) 15 -}}
{{- end -}}
