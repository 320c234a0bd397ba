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

{{/* Not empty if there may be several gateways at once. */}}
{{- define "routecodex.isSeveral" -}}
{{- if .Values.autoscaling.enabled -}}
{{- if gt (int .Values.autoscaling.maxReplicas) 1 }}true{{ end -}}
{{- else if gt (int .Values.replicaCount) 1 -}}
true
{{- end -}}
{{- end -}}

{{/* The address family that a gateway listens on: "::" takes no IPv4 connections. */}}
{{- define "routecodex.host" -}}
{{- $host := .Values.server.host | default "0.0.0.0" -}}
{{- if not (has $host (list "0.0.0.0" "::")) -}}
{{- fail "server.host is 0.0.0.0 or ::, the addresses of all interfaces: a pod is reached from outside" -}}
{{- end -}}
{{- $host -}}
{{- end -}}

{{/* Refuse values with which no gateway would start, or with which several would not share their state. */}}
{{- define "routecodex.check" -}}
{{- $table := "(?m)^\\s*(\\[\\s*[\"']?server[\"']?\\s*\\]|[\"']?server[\"']?\\s*[.=])" -}}
{{- range $name, $text := dict "config" .Values.config "server.extra" .Values.server.extra -}}
{{- if regexMatch $table $text -}}
{{- fail (printf "%s has a table [server]: set server.host, server.port, server.drainSeconds, server.drainNoticeMs and, for other keys, server.extra without a table" $name) -}}
{{- end -}}
{{- end -}}
{{- if regexMatch "(?m)^\\s*[\"']?(host|port|drain_seconds|drain_notice_ms)[\"']?\\s*=" .Values.server.extra -}}
{{- fail "server.extra sets a value of the chart: set server.host, server.port, server.drainSeconds and server.drainNoticeMs instead" -}}
{{- end -}}
{{- if and .Values.persistence.enabled (or .Values.autoscaling.enabled (include "routecodex.isSeveral" .)) -}}
{{- fail "persistence is for one gateway: set replicaCount to 1 and autoscaling.enabled to false, or persistence.enabled to false and use a Redis store" -}}
{{- end -}}
{{- if include "routecodex.isSeveral" . -}}
{{- /* Lines of the table [store] up to its url; that may come from a variable. */ -}}
{{- $shared := "(?m)^\\s*\\[\\s*[\"']?store[\"']?\\s*\\].*\\n(?:\\s*(?:[^\\[\\s].*)?\\n)*?\\s*[\"']?url[\"']?\\s*=\\s*[\"'](?:redis|\\$\\{)" -}}
{{- if not (regexMatch $shared .Values.config) -}}
{{- fail "several gateways need a Redis store: set url = \"redis://…\" under [store] in config, or replicaCount to 1 and autoscaling.enabled to false" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "routecodex.config" -}}
{{- $config := required "config must hold the configuration: providers and routing" .Values.config -}}
{{- include "routecodex.check" . -}}
{{/* First, because its keys may stand outside any table. */ -}}
{{ $config | trim }}

[server]
host = {{ include "routecodex.host" . | quote }}
port = {{ .Values.server.port | int }}
drain_seconds = {{ .Values.server.drainSeconds | int }}
drain_notice_ms = {{ .Values.server.drainNoticeMs | int }}
{{ .Values.server.extra | trim }}
{{- end -}}

{{/* Longer than notice and drain together: streams may end before the container is killed. */}}
{{- define "routecodex.graceSeconds" -}}
{{- add (int .Values.server.drainSeconds) (div (add (int .Values.server.drainNoticeMs) 999) 1000) 15 -}}
{{- end -}}
