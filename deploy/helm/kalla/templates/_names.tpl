{{- /* The one image of the API, workers, query workers and Spark. */}}
{{- define "kalla.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
