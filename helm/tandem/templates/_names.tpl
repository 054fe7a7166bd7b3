{{- /* The name of the chart in labels. */}}
{{- define "tandem.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- /* The name of the installation: at most 40 characters, so that every suffix fits the 63 of a label. A longer one
ends in a hash, so that two that begin alike stay two. */}}
{{- define "tandem.fullname" -}}
{{- $name := include "tandem.name" . }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- $full = default $full .Values.fullnameOverride }}
{{- if gt (len $full) 40 }}
{{- $full = printf "%s-%s" (trunc 31 $full | trimSuffix "-") (sha256sum $full | trunc 8) }}
{{- end }}
{{- $full }}
{{- end }}

{{- /* The name of a component: (list $ "router"). */}}
{{- define "tandem.component" -}}
{{- printf "%s-%s" (include "tandem.fullname" (index . 0)) (index . 1) }}
{{- end }}

{{- /* What selects the pods of a component: (list $ "router"). Never changes in an upgrade. */}}
{{- define "tandem.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "tandem.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* The labels that the chart itself gives an object: (list $ "router"). */}}
{{- define "tandem.ownLabels" -}}
{{- $root := index . 0 -}}
{{ include "tandem.selectorLabels" . }}
app.kubernetes.io/part-of: tandem
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Every label of an object: (list $ "router"). */}}
{{- define "tandem.labels" -}}
{{ include "tandem.ownLabels" . }}
{{- with (index . 0).Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The head of an object: (list $ "router"), or with a suffix (list $ "router" "-tls"), further annotations, and
further labels. */}}
{{- define "tandem.metadata" -}}
{{- $root := index . 0 }}
{{- $suffix := "" }}
{{- if gt (len .) 2 }}{{ $suffix = index . 2 }}{{ end }}
{{- $annotations := dict }}
{{- if gt (len .) 3 }}{{ $annotations = index . 3 }}{{ end }}
{{- $labels := dict }}
{{- if gt (len .) 4 }}{{ $labels = index . 4 }}{{ end -}}
name: {{ include "tandem.component" . }}{{ $suffix }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- merge (dict) $labels (include "tandem.labels" . | fromYaml) | toYaml | nindent 2 }}
{{- with merge (dict) $annotations $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "tandem.serviceAccountName" -}}
{{- $account := (index (index . 0).Values (index . 1)).serviceAccount }}
{{- if $account.name }}{{ $account.name }}
{{- else if $account.create }}{{ include "tandem.component" . }}
{{- else }}default
{{- end }}
{{- end }}

{{- /* The reference of an image: (list $ .Values.image). */}}
{{- define "tandem.image" -}}
{{- $root := index . 0 }}
{{- $image := index . 1 }}
{{- $repository := $image.repository }}
{{- with $root.Values.global.imageRegistry }}
{{- $repository = printf "%s/%s" . (regexReplaceAll "^[^/]*[.:][^/]*/" $repository "") }}
{{- end }}
{{- if $image.digest }}{{ printf "%s@%s" $repository $image.digest }}
{{- else }}{{ printf "%s:%s" $repository (default $root.Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}
